"""Losses and norms on their way to the report, without a wait in the loop.

    attach(run)       # behind gnomon.init, before the first step

`Step.log` then copies a tensor of one element without a wait (`gnomon.device_copy`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gnomon.device_copy import DeviceCopy
from gnomon.run import Run


def attach(run: Run) -> None:
    """Has `run` keep and read tensors as this module does."""
    run.capture = capture
    run.read = float


def capture(value: Any) -> Any:
    """Returns what `float` makes a number of later. Tensors are copied, so what the loop does to
    them afterwards does not count. A sharded tensor (a norm under FSDP2) is summed up first, so
    all ranks have to log it.
    """
    if not isinstance(value, Tensor):
        return float(value)
    sharded: Any = value
    tensor = value.detach() if not hasattr(value, "full_tensor") else sharded.full_tensor().detach()
    return DeviceCopy(tensor) if tensor.is_cuda else tensor.clone()
