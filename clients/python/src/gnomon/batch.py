"""The hash of a batch: what shows that a replay saw the tokens that the run saw, in their order.

A run and its verifier hash the same values: what the loader gives, of the same type. A tensor or
an array counts with its bytes; a mapping with its "input_ids" alone where it has them; a list or
a tuple with its items. 64 bits of SHA-256, which processors have instructions for.
"""

from __future__ import annotations

import array
import hashlib
import sys
from collections.abc import Mapping
from typing import Any

from gnomon.device_copy import DeviceCopy


def batch_hash(batch: Any) -> str:
    """The hash of a batch; empty for None. Raises TypeError for what has no bytes."""
    if batch is None:
        return ""
    digest = hashlib.sha256()
    _update(digest, batch)
    return digest.hexdigest()[:16]


def capture_batch(batch: Any) -> Any:
    """What can be hashed later although the loop uses its buffers again: copies."""
    if isinstance(batch, bytes | str):
        return batch
    if hasattr(batch, "detach"):
        if batch.is_cuda:
            return DeviceCopy(batch)
        return _tensor_bytes(batch) if batch.device.type == "cpu" else batch.detach().clone()
    if isinstance(batch, Mapping):
        if "input_ids" in batch:
            return capture_batch(batch["input_ids"])
        return {key: capture_batch(batch[key]) for key in batch}
    if isinstance(batch, tuple):
        return tuple(capture_batch(each) for each in batch)
    if isinstance(batch, list):
        plain = not batch or isinstance(batch[0], int | float)
        return list(batch) if plain else [capture_batch(each) for each in batch]
    try:
        return memoryview(batch).tobytes()
    except TypeError:
        return batch


def _update(digest: Any, batch: Any) -> None:
    if isinstance(batch, str):
        digest.update(batch.encode())
    elif hasattr(batch, "detach"):
        digest.update(_tensor_bytes(batch))
    elif isinstance(batch, Mapping):
        if "input_ids" in batch:
            return _update(digest, batch["input_ids"])
        for key in sorted(batch):
            digest.update(str(key).encode())
            _update(digest, batch[key])
    elif isinstance(batch, list | tuple):
        if batch and all(type(each) is int for each in batch):
            digest.update(array.array("q", batch).tobytes())
        else:
            for each in batch:
                _update(digest, each)
    elif isinstance(batch, int | float):
        digest.update(repr(batch).encode())
    else:
        try:
            digest.update(memoryview(batch).tobytes())
        except TypeError:
            raise TypeError(
                f"a batch of type {type(batch).__name__} has no bytes to hash; give tensors, "
                "arrays, bytes, lists of token ids, or a mapping with input_ids"
            ) from None
    return None


def _tensor_bytes(tensor: Any) -> bytes:
    """The bytes of a PyTorch tensor, also of formats that NumPy does not know."""
    host = tensor.detach().cpu().contiguous()
    torch = sys.modules["torch"]
    data: bytes = host.reshape(-1).view(torch.uint8).numpy().tobytes()
    return data
