"""A GPU's tensor on its way to the host, without a wait in the loop.

The copy is queued on the stream that made the tensor, so what the loop does to the tensor
afterwards does not count: a CUDA graph's input buffer, for example, is filled again each step. Who
reads it, in another thread, waits for that copy alone, not for what the GPU has been given since.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

_FREE_BYTES_MAX = 64 << 20


class Buffers:
    """Pinned tensors and their events that wait to be used again, by device, shape and type: to
    make them takes longer than to queue the copy. From any thread.
    """

    def __init__(self, bytes_max: int = _FREE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._free: dict[Any, list[tuple[Any, Any]]] = {}
        self.bytes = 0

    def take(self, kind: Any) -> tuple[Any, Any] | None:
        """Returns one of this kind, if there is one."""
        with self._lock:
            pairs = self._free.get(kind)
            if not pairs:
                return None
            pair = pairs.pop()
            self.bytes -= pair[0].nbytes
            return pair

    def give_back(self, kind: Any, pair: tuple[Any, Any]) -> None:
        """Keeps it. Where that is too much all go: their shapes may never come again."""
        with self._lock:
            if self.bytes + pair[0].nbytes > self._bytes_max:
                self._free.clear()
                self.bytes = 0
            self._free.setdefault(kind, []).append(pair)
            self.bytes += pair[0].nbytes


_buffers = Buffers()


class DeviceCopy:
    """The copy of a CUDA tensor in pinned host memory, which is under way."""

    __slots__ = ("_kind", "_pair", "_value")

    def __init__(self, tensor: Any) -> None:
        torch: Any = sys.modules["torch"]
        device = tensor.device
        self._kind = (device.index, tensor.shape, tensor.dtype)
        self._value: Any = None
        pair = _buffers.take(self._kind)
        if pair is None:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            pair = (host, torch.cuda.Event())
        self._pair = pair
        host, copied = pair
        host.copy_(tensor.detach(), non_blocking=True)
        copied.record(torch.cuda.current_stream(device))

    def detach(self) -> Any:
        """Returns the tensor on the host, once it is there."""
        if self._value is None:
            host, copied = self._pair
            copied.synchronize()
            self._value = host.clone()
            _buffers.give_back(self._kind, self._pair)
        return self._value

    def __float__(self) -> float:
        return float(self.detach())
