"""A GPU's tensor on its way to the host, without a wait in the loop.

The copy is queued on the stream that made the tensor, so what the loop does to the tensor
afterwards does not count: a CUDA graph's input buffer, for example, is filled again each step. Who
reads it, in another thread, waits for that copy alone, not for what the GPU has been given since.
"""

from __future__ import annotations

import sys
from typing import Any


class DeviceCopy:
    """The copy of a CUDA tensor in pinned host memory, which is under way."""

    __slots__ = ("_copied", "_host")

    def __init__(self, tensor: Any) -> None:
        torch: Any = sys.modules["torch"]
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor.detach(), non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(tensor.device))

    def detach(self) -> Any:
        """Returns the tensor on the host, once it is there."""
        self._copied.synchronize()
        return self._host

    def __float__(self) -> float:
        return float(self.detach())
