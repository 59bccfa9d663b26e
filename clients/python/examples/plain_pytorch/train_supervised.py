"""The same loop with its linear layers in FP8, under a controller: 11 lines more."""

import argparse
import os
import time

import torch
from model import DEVICE, GPT, get_batch, get_lr, sequence_losses

import gnomon.torch

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", default="out")
parser.add_argument("--max_iters", type=int, default=2000)
parser.add_argument("--eval_interval", type=int, default=10)
args = parser.parse_args()

torch.set_num_threads(1)
model = GPT().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
state = {"optimizer": optimizer}
run = gnomon.torch.init(model, "plan.toml", state=state, project="nanogpt", name="fp8",
                        checkpoint_every=args.eval_interval)

iter_num, t0 = run.newest_step, time.time()
while iter_num < args.max_iters:
    if iter_num % args.eval_interval == 0:
        print(f"step {iter_num}: val loss {sequence_losses(model).mean():.4f}")
        path = os.path.join(args.out_dir, f"ckpt-{iter_num:06}.pt")
        gnomon.torch.checkpoint.save(path, step=iter_num, model=model, plan=run.plan, state=state)
        run.checkpoint(path)
    with run.step() as s:
        iter_num = s.step - 1  # a rollback may have changed it
        for group in optimizer.param_groups:
            group["lr"] = get_lr(iter_num)
        X, Y = get_batch("train", iter_num)
        with torch.autocast(DEVICE, torch.bfloat16):
            _, loss = model(X, Y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        s.log(loss=loss, grad_norm=norm, tokens=X.numel())
        if iter_num % 10 == 0:
            print(f"iter {iter_num}: loss {loss.item():.4f}, {time.time() - t0:.1f} s", flush=True)
        iter_num += 1
run.finish()
