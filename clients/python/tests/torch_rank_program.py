"""One rank of test_torch_ranks.py: trains with or without a shadow, and prints what came of it.

python torch_rank_program.py RANK RANKS STORE_FILE MODE
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch_job import batch_of, make_evaluate, make_parts, make_step

from gnomon.plan import PrecisionPlan
from gnomon.torch import (
    Fault,
    Shadow,
    adopt,
    broadcast,
    plan_sites,
    set_plan,
    set_step,
    weights_hash,
)

FAULT = Fault("layers.1.down_proj", 5, 0, "scale_shift", "input", log2_factor=8)
LAST = 12


def wrapped(model: nn.Module, mode: str) -> nn.Module:
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    layers: Any = model.get_submodule("layers")
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    return model


def train(mode: str, with_shadow: bool) -> dict[str, Any]:
    """Trains LAST steps; each rank has half of each batch."""
    model: nn.Module
    model, _, _ = make_parts()
    sites = adopt(model, PrecisionPlan.fp8())
    model = wrapped(model, mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    train_step = make_step(model, optimizer, scheduler)
    if mode == "fsdp2":
        train_step = sharded_step(train_step)
    torch.manual_seed(dist.get_rank())  # dropout differs from rank to rank
    shadow = Shadow(
        model,
        optimizer,
        scheduler,
        train_step=train_step,
        evaluate=make_evaluate(model),
        every=4,
        steps=4,
        arms=("bf16", "same"),
        faults=(FAULT,),
    )
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses, windows = [], []
    for step in range(1, LAST + 1):
        batch = batch_of(step)[rank::ranks]
        if not with_shadow:
            set_step(model, step, [FAULT])
            losses.append(float(train_step(batch)[0]))
            continue
        losses.append(float(shadow.step(batch)[0]))
        if window := shadow.verify():
            windows.append(window)
    assert list(plan_sites(model)) == sites
    set_plan(model, broadcast(PrecisionPlan.bf16() if rank == 0 else None))
    assert not any(module.choice.any_fp8 for module in plan_sites(model).values())
    return {
        "losses": losses,
        "weights": weights_hash(model),
        "gaps": [window.gap_percent for window in windows],
        "reproduces": [window.reproduces("same") for window in windows],
        "steps": [[step.loss for step in window.results["same"].steps] for window in windows],
    }


def sharded_step(train_step: Any) -> Any:
    """The norm of sharded gradients is a sharded tensor; its value is the same on all ranks."""

    def step(batch: Any) -> Any:
        loss, norm = train_step(batch)
        return loss, norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    return step


def main() -> None:
    rank, ranks, store, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    results = [train(mode, with_shadow) for with_shadow in (False, True)]
    print(json.dumps(results), flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads abort some processes that end in order


if __name__ == "__main__":
    main()
