"""Losses and norms on their way to the report, without a wait in the loop.

    attach(run)       # behind gnomon.init, before the first step

`Step.log` then copies a tensor of one element to pinned host memory on the stream that made it, and
the reporting thread waits for that copy alone: not for what the GPU has been given since.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnomon.run import Run


class _Later:
    """A number that is on its way to the host."""

    __slots__ = ("_copied", "_host")

    def __init__(self, host: Tensor, copied: Any) -> None:
        self._host = host
        self._copied = copied

    def __float__(self) -> float:
        self._copied.synchronize()
        return float(self._host)


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
    if not tensor.is_cuda:
        return tensor.clone()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(tensor.device))
    return _Later(host, copied)
