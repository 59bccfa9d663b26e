"""A GPU's tensor on its way to the host, without a wait in the loop.

The copy is queued on the stream that made the tensor, so what the loop does to the tensor
afterwards does not count: a CUDA graph's input buffer, for example, is filled again each step. Who
reads it, in another thread, waits for that copy alone, not for what the GPU has been given since.
"""

from __future__ import annotations

import sys
from typing import Any

# Pinned tensors and their events that wait to be used again, by device, shape and type: to make
# them takes longer than to queue the copy.
_free: dict[Any, list[tuple[Any, Any]]] = {}
_FREE_MAX = 32  # of each kind


class DeviceCopy:
    """The copy of a CUDA tensor in pinned host memory, which is under way."""

    __slots__ = ("_pair", "_pool", "_value")

    def __init__(self, tensor: Any) -> None:
        torch: Any = sys.modules["torch"]
        device = tensor.device
        self._pool = _free.setdefault((device.index, tensor.shape, tensor.dtype), [])
        self._value: Any = None
        if self._pool:
            self._pair = self._pool.pop()
        else:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            self._pair = (host, torch.cuda.Event())
        host, copied = self._pair
        host.copy_(tensor.detach(), non_blocking=True)
        copied.record(torch.cuda.current_stream(device))

    def detach(self) -> Any:
        """Returns the tensor on the host, once it is there."""
        if self._value is None:
            host, copied = self._pair
            copied.synchronize()
            self._value = host.clone()
            if len(self._pool) < _FREE_MAX:
                self._pool.append(self._pair)
        return self._value

    def __float__(self) -> float:
        return float(self.detach())
