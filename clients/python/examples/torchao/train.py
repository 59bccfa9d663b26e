"""A plain loop over torchao's Float8Linear, whose layers are pinned live by Float8Pin."""

import argparse
import dataclasses
import pathlib

import torch
from torch import nn
from torch.nn import functional
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import gnomon
from gnomon.torch import checkpoint
from gnomon.torch.float8_pin import Float8Pin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--max_steps", type=int, default=400)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(
        nn.Embedding(64, 64),
        nn.Linear(64, 128),
        nn.SiLU(),
        nn.Linear(128, 64),
        nn.Linear(64, 64, bias=False),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Products are emulated where there is no GPU with FP8.
    config = Float8LinearConfig.from_recipe_name("rowwise")
    config = dataclasses.replace(config, emulate=device == "cpu")
    convert_to_float8_training(model, config=config)
    pin = Float8Pin(model)

    def load(rollback: gnomon.Rollback) -> None:
        checkpoint.load(rollback.checkpoint_uri, model=model, state={"optimizer": optimizer})

    run = gnomon.init(
        project="examples",
        name="torchao",
        sites=pin.sites,
        plan=pin.plan,
        framework="pytorch",
        checkpoint_format=checkpoint.FORMAT,
        checkpoint_every=20,
        total_steps=args.max_steps,
        capabilities=dataclasses.replace(pin.capabilities, rollback="live"),
        on_plan=pin.set_plan,
        on_rollback=load,
    )
    if run.resume_from is not None:
        resume = run.resume_from
        checkpoint.load(resume.checkpoint, model=model, state={"optimizer": optimizer})
        run.start_from(resume.step)
    while run.newest_step < args.max_steps:
        with run.step() as s:
            starts = s.step * 16 + torch.arange(16)[:, None]
            tokens = (starts * 7 + torch.arange(33) * (1 + starts % 3)) % 64
            s.batch(tokens)
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            s.log(loss=loss, grad_norm=norm, tokens=tokens.numel())
        if s.step % 20 == 0:
            path = pathlib.Path(args.output_dir) / f"step-{s.step:06}-{s.attempt}"
            state = {"optimizer": optimizer}
            checkpoint.save(path, step=s.step, model=model, plan=run.plan, state=state)
            run.checkpoint(path)
    run.finish()


if __name__ == "__main__":
    main()
