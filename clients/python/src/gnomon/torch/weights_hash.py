"""A hash of all weights: equal weights in an equal layout have equal hashes.

It costs time (BLAKE2b hashes some 0.5 to 1 GB a second on one core), so take it at checkpoints
only. With the package `xxhash` installed it is XXH3, several times as fast.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from gnomon.torch.plan_linear import site_name
from gnomon.torch.ranks import all_gathered, reshard


class _Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def hexdigest(self) -> str: ...


def weights_hash(model: nn.Module, *, fast: bool | None = None) -> str:
    """Returns the hash of every parameter's name, shape, type and bits, as "b2:…" or "xxh3:…".
    `fast`: XXH3; None: where it is installed. Where parameters are sharded, all ranks call it
    together and get the same hash; shards are hashed where they are, so their layout counts.
    Raises ImportError where `fast` is True and the package is missing.
    """
    name, digest = _digest(fast)
    reshard(model)
    for parameter_name, parameter in model.named_parameters():
        local, layout = _local(parameter)
        head = f"{site_name(parameter_name)} {tuple(parameter.shape)} {local.dtype} {layout}\n"
        digest.update(head.encode())
        digest.update(_bytes(local))
    own = digest.hexdigest()
    if not any(_is_sharded(parameter) for parameter in model.parameters()):
        return f"{name}:{own}"
    _, together = _digest(fast)
    for each in all_gathered(own):
        together.update(str(each).encode())
    return f"{name}:{together.hexdigest()}"


def _digest(fast: bool | None) -> tuple[str, _Digest]:
    if fast is not False:
        try:
            import xxhash

            return "xxh3", xxhash.xxh3_64()
        except ImportError:
            if fast:
                raise
    return "b2", hashlib.blake2b(digest_size=8)


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "to_local")


def _local(tensor: Tensor) -> tuple[Tensor, str]:
    """Returns what this rank holds, and how the whole is laid out."""
    if not _is_sharded(tensor):
        return tensor.detach(), ""
    sharded: Any = tensor
    local: Tensor = sharded.to_local()
    return local.detach(), str(sharded.placements)


def _bytes(tensor: Tensor) -> memoryview:
    host = tensor.cpu().contiguous().reshape(-1)
    if host.numel() == 0:
        return memoryview(b"")
    return memoryview(cast(Any, host.view(torch.uint8).numpy()))
