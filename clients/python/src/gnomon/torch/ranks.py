"""Ranks of `torch.distributed`. In a process that is alone each function is trivial."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def is_together() -> bool:
    """Returns whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    """Returns this process's rank; 0 where it is alone."""
    return dist.get_rank() if is_together() else 0


def world_size() -> int:
    """Returns the number of ranks."""
    return dist.get_world_size() if is_together() else 1


def broadcast(value: Any) -> Any:
    """Returns rank 0's `value` on every rank; `gnomon.init(broadcast=...)` takes it. All ranks call
    it together. The value is pickled: it comes from ranks of the same job alone.
    """
    if not is_together():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gathered(value: Any) -> list[Any]:
    """Returns the values of all ranks, in their order, on every rank."""
    if not is_together():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def mean_of_ranks(value: Any) -> Any:
    """Returns the mean of all ranks' values, on every rank: of numbers, or of tensors of one
    element, which stay tensors. The loop does not wait for a GPU. All ranks call it together.
    """
    if not is_together():
        return value
    if hasattr(value, "full_tensor"):
        value = value.full_tensor()
    if isinstance(value, Tensor) and value.is_cuda:
        total = value.detach().to(torch.float64, copy=True)
        dist.all_reduce(total)
        return total / world_size()
    values = all_gathered(float(value))
    mean = math.fsum(values) / len(values)
    return torch.tensor(mean, dtype=torch.float64) if isinstance(value, Tensor) else mean


def reshard(model: nn.Module) -> None:
    """Has FSDP2 give back gathered parameters, so that `model.parameters()` are the sharded ones.
    A forward pass without a backward pass leaves those of the root gathered.
    """
    if not dist.is_available():
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
