"""A training loop of nanoGPT's shape, before it is supervised."""

import argparse
import os
import time

import torch
from model import DEVICE, GPT, get_batch, get_lr, sequence_losses

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", default="out")
parser.add_argument("--max_iters", type=int, default=2000)
parser.add_argument("--eval_interval", type=int, default=10)
args = parser.parse_args()

torch.set_num_threads(1)
model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)

iter_num, t0 = 0, time.time()
while iter_num < args.max_iters:
    if iter_num % args.eval_interval == 0:
        print(f"step {iter_num}: val loss {sequence_losses(model).mean():.4f}")
        path = os.path.join(args.out_dir, f"ckpt-{iter_num:06}.pt")
        os.makedirs(args.out_dir, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    X, Y = get_batch("train", iter_num)
    with torch.autocast(DEVICE, torch.bfloat16):
        _, loss = model(X, Y)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}, {time.time() - t0:.1f} s", flush=True)
    iter_num += 1
