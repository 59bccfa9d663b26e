"""Replays windows of train_supervised.py: gnomon-verify verifier:verifier --name verifier-1."""

from __future__ import annotations

from typing import Any

import torch
from model import BATCH, BLOCK, DEVICE, GPT, get_batch, get_lr, sequence_losses
from torch import Tensor

import gnomon
from gnomon.torch import Job, adopt, make_verifier


def make_job() -> Job:
    """What the trainer is made of. `batch` comes before each step, and so knows its number."""
    torch.set_num_threads(1)
    model = GPT().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    adopt(model, gnomon.PrecisionPlan.load("plan.toml"))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step - 1)
        return get_batch("train", step - 1)

    def train_step(batch: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
        X, Y = batch
        with torch.autocast(DEVICE, torch.bfloat16):
            _, loss = model(X, Y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach(), norm

    return Job(
        model=model,
        train_step=train_step,
        batch=batch,
        evaluate=lambda: sequence_losses(model),
        heldout_tokens=2 * BATCH * BLOCK,
        state={"optimizer": optimizer},
    )


verifier = make_verifier(make_job)
