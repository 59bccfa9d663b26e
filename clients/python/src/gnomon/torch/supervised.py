"""A run of a plain PyTorch loop: its layers, its checkpoints and where it goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

import gnomon.registration
from gnomon.plan import PrecisionPlan
from gnomon.run import Run
from gnomon.torch import checkpoint
from gnomon.torch.checkpoint import Stateful
from gnomon.torch.plan_linear import adopt, set_plan


def init(
    model: nn.Module,
    plan: str | os.PathLike[str] | PrecisionPlan,
    *,
    state: Mapping[str, Stateful] | None = None,
    **options: Any,
) -> Run:
    """Puts the plan's layers into `model`, begins the run and, where it goes on, loads what
    `gnomon.torch.checkpoint.save` has written: a rollback, a start after a crash. `run.newest_step`
    is then the step where the loop begins.

    state: what else a checkpoint holds, such as {"optimizer": optimizer}. options: of
    `gnomon.init`. Raises what `gnomon.init`, `adopt` and `checkpoint.load` do.
    """
    if not isinstance(plan, PrecisionPlan):
        plan = PrecisionPlan.load(plan)
    run = gnomon.registration.init(
        plan=plan,
        sites=adopt(model, plan),
        checkpoint_format=checkpoint.FORMAT,
        framework="pytorch",
        on_plan=lambda new: set_plan(model, new),
        on_rollback=lambda to: checkpoint.load(to.checkpoint_uri, model=model, state=state),
        **options,
    )
    if run.resume_from is not None:
        checkpoint.load(run.resume_from.checkpoint, model=model, state=state)
        run.start_from(run.resume_from.step)
    return run
