"""The state of a training job at a step boundary, kept aside and put back bit for bit.

Tensors are copied to the host (pinned where there is a GPU), stay on their device, or go to a file
on disk; putting back copies into the tensors that are there, so that parameters, sharded ones
(FSDP2) and what DDP or an optimizer holds of them stay the same objects. Each rank keeps its part.
"""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, Literal

import torch
from torch import Tensor, nn

from gnomon.torch.checkpoint import Stateful
from gnomon.torch.random_state import random_state, set_random_state
from gnomon.torch.ranks import reshard

Place = Literal["host", "device", "disk"]


class Snapshot:
    """What `model`, `optimizer` and `others` (schedulers, a gradient scaler) were at that moment.

    `place`: where tensors are kept. "disk" needs `directory`; the file has no name, so that it goes
    with `close` or with the process.
    Raises OSError where the disk does not take it.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        others: Sequence[Stateful] = (),
        place: Place = "host",
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._others = others
        self._place = place
        self._file: IO[bytes] | None = None
        reshard(model)
        with torch.no_grad():
            content = {
                "weights": [self._keep(tensor) for tensor in _weights(model)],
                "grads": [self._keep_grad(parameter) for parameter in model.parameters()],
                "modes": [module.training for module in model.modules()],
                "groups": [_without_params(group) for group in optimizer.param_groups],
                "optimizer": [self._keep_entry(each) for each in _optimizer_entries(optimizer)],
                "others": [copy.deepcopy(each.state_dict()) for each in others],
                "random": random_state(),
            }
        self._content: dict[str, Any] | None = content
        if place == "disk":
            with contextlib.ExitStack() as opened:
                self._file = opened.enter_context(tempfile.TemporaryFile(dir=directory))
                torch.save(content, self._file)
                opened.pop_all()
            self._content = None

    @torch.no_grad()
    def restore(self) -> None:
        """Puts everything back. It may be called again: the snapshot stays as it is."""
        reshard(self._model)
        content = self._content
        if content is None:
            assert self._file is not None
            self._file.seek(0)
            content = torch.load(self._file, map_location="cpu", weights_only=False)
        for tensor, kept in zip(_weights(self._model), content["weights"], strict=True):
            _local(tensor).copy_(kept)
        for parameter, kept in zip(self._model.parameters(), content["grads"], strict=True):
            _put_back_grad(parameter, kept)
        for module, training in zip(self._model.modules(), content["modes"], strict=True):
            module.training = training
        for group, kept in zip(self._optimizer.param_groups, content["groups"], strict=True):
            _put_back_group(group, kept)
        self._put_back_entries(content["optimizer"])
        for each, kept in zip(self._others, content["others"], strict=True):
            each.load_state_dict(copy.deepcopy(kept))
        set_random_state(content["random"])

    def close(self) -> None:
        """Gives back what it holds."""
        self._content = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _keep(self, tensor: Tensor) -> Tensor:
        local = _local(tensor.detach())
        if self._place == "device" or local.device.type == "cpu":
            return local.clone()
        if self._place == "disk":
            return local.cpu()
        host = torch.empty(local.shape, dtype=local.dtype, pin_memory=True)
        return host.copy_(local)

    def _keep_grad(self, parameter: nn.Parameter) -> Tensor | None:
        return None if parameter.grad is None else self._keep(parameter.grad)

    def _keep_entry(self, entry: dict[str, Any] | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        return {
            key: self._keep(value) if isinstance(value, Tensor) else copy.deepcopy(value)
            for key, value in entry.items()
        }

    def _put_back_entries(self, kept: list[dict[str, Any] | None]) -> None:
        """An entry that did not exist yet goes; tensors that exist are filled in place."""
        state = self._optimizer.state
        parameters = list(_optimizer_parameters(self._optimizer))
        for parameter, values in zip(parameters, kept, strict=True):
            if values is None:
                state.pop(parameter, None)
                continue
            entry = state[parameter]
            for key in [key for key in entry if key not in values]:
                del entry[key]
            for key, value in values.items():
                now = entry.get(key)
                if not isinstance(value, Tensor):
                    entry[key] = copy.deepcopy(value)
                    continue
                if not isinstance(now, Tensor):
                    now = entry[key] = _room_for(value, parameter)
                _local(now).copy_(value)


def _weights(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers, also those that no state_dict has."""
    yield from model.parameters()
    yield from model.buffers()


def _optimizer_parameters(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _optimizer_entries(optimizer: torch.optim.Optimizer) -> Iterator[dict[str, Any] | None]:
    """The optimizer's state of each parameter; None where it has none yet."""
    for parameter in _optimizer_parameters(optimizer):
        yield optimizer.state.get(parameter, None)


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}


def _put_back_group(group: dict[str, Any], kept: dict[str, Any]) -> None:
    for key in [key for key in group if key != "params" and key not in kept]:
        del group[key]
    for key, value in kept.items():
        if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
            group[key].copy_(value)  # a learning rate that a graph or a compiled step reads
        else:
            group[key] = copy.deepcopy(value)


def _room_for(kept: Tensor, parameter: Tensor) -> Tensor:
    """Returns a tensor to copy `kept` into: sharded as the parameter where it is of its shape."""
    of_parameter = kept.dim() > 0 and kept.shape == _local(parameter).shape
    if of_parameter and kept.dtype == parameter.dtype:
        return torch.zeros_like(parameter)
    return torch.empty_like(kept, device=parameter.device if kept.dim() > 0 else kept.device)


def _put_back_grad(parameter: nn.Parameter, kept: Tensor | None) -> None:
    if kept is None:
        parameter.grad = None
        return
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    _local(parameter.grad).copy_(kept)


def _local(tensor: Tensor) -> Tensor:
    """Returns this rank's part of a sharded tensor, which shares its memory; else the tensor."""
    sharded: Any = tensor
    local: Tensor = sharded.to_local() if hasattr(tensor, "to_local") else tensor
    return local
