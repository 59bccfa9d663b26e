"""A checkpoint of a run in one process or under DDP: a directory of the format `torch`.

    state.pt        torch.save of model, optimizer, scheduler, random state, step, plan
    manifest.json   size and BLAKE2b hash of state.pt; written last

It is written under another name, synced and renamed, so that a directory with the final name is
complete; one that it replaces is NAME.old meanwhile. `load` checks the manifest before it trusts,
and reads with `weights_only`: a checkpoint can hold tensors and plain values, and no code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import pickle
import shutil
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from gnomon.errors import Rejected
from gnomon.plan import PrecisionPlan
from gnomon.torch.random_state import random_state, set_random_state_of_rank
from gnomon.torch.ranks import rank

FORMAT = "torch"
_STATE = "state.pt"
_MANIFEST = "manifest.json"


class Stateful(Protocol):
    """What has a state, like an optimizer, a scheduler or a gradient scaler."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class DamagedCheckpoint(Rejected):
    """A checkpoint is incomplete, or its files are not what its manifest says. A rollback to
    it is rejected, and training goes on.
    """


def save(
    path: str | os.PathLike[str],
    *,
    step: int,
    model: nn.Module,
    plan: PrecisionPlan,
    state: Mapping[str, Stateful] | None = None,
) -> int:
    """Writes the checkpoint of `step` to the directory `path`, which is replaced, and returns its
    bytes. `state` are further things to keep: {"optimizer": optimizer, "scheduler": scheduler}.
    Under DDP rank 0 alone calls it, so the random state is that rank's (see `load`). Raises OSError
    where the disk does not take it.
    """
    final = pathlib.Path(path)
    partial = final.with_name(final.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    content = {
        "format": 1,
        "step": step,
        "plan": plan.to_toml(),
        "model": unwrapped(model).state_dict(),
        "state": {name: _plain(each.state_dict()) for name, each in (state or {}).items()},
        "random": random_state(),
    }
    with open(partial / _STATE, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    size = (partial / _STATE).stat().st_size
    manifest = {_STATE: {"bytes": size, "blake2b": _hash_of(partial / _STATE)}}
    with open(partial / _MANIFEST, "w", encoding="utf-8") as text:
        json.dump(manifest, text)
        text.flush()
        os.fsync(text.fileno())
    aside = final.with_name(final.name + ".old")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        final.rename(aside)
    partial.rename(final)
    shutil.rmtree(aside, ignore_errors=True)
    return size


def load(
    path: str | os.PathLike[str],
    *,
    model: nn.Module,
    state: Mapping[str, Stateful] | None = None,
    restore_random: bool = True,
) -> tuple[int, PrecisionPlan]:
    """Loads a checkpoint into `model` and `state`, and returns its step and its plan. A rank that
    was seeded otherwise than rank 0 gets random numbers of its own: the same after each load, not
    those that it had.
    Raises DamagedCheckpoint, with nothing changed, where it is not what was written.
    """
    content = read(path)
    for name in state or {}:
        if name not in content["state"]:
            raise DamagedCheckpoint(
                f"{path}: no state of {name}; saved are {list(content['state'])}"
            )
    plan = PrecisionPlan.parse(content["plan"], f"{path}: plan")
    unwrapped(model).load_state_dict(content["model"])
    for name, each in (state or {}).items():
        each.load_state_dict(content["state"][name])
    if restore_random:
        set_random_state_of_rank(content["random"], rank())
    return int(content["step"]), plan


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns what a checkpoint holds, on the CPU. Raises DamagedCheckpoint."""
    directory = pathlib.Path(path)
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
        said = manifest[_STATE]
        if (directory / _STATE).stat().st_size != said["bytes"]:
            raise DamagedCheckpoint(f"{directory / _STATE}: not of {said['bytes']} bytes")
        if _hash_of(directory / _STATE) != said["blake2b"]:
            raise DamagedCheckpoint(f"{directory / _STATE}: not of the hash {said['blake2b']}")
        content = torch.load(directory / _STATE, map_location="cpu", weights_only=True)
    except (OSError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise DamagedCheckpoint(
            f"{directory}: not a checkpoint of the format torch ({error})"
        ) from error
    if not isinstance(content, dict) or content.get("format") != 1:
        raise DamagedCheckpoint(f"{directory / _STATE}: not of format 1")
    return content


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model inside DDP and torch.compile."""
    while True:
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if (
            type(model).__name__ not in ("DistributedDataParallel", "OptimizedModule")
            or inner is None
        ):
            return model
        model = inner


def _plain(value: Any) -> Any:
    """Returns a state with NumPy's numbers as Python's: `weights_only` reads no others."""
    if type(value) is dict:
        return {_plain(key): _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value.item() if type(value).__module__ == "numpy" and value.ndim == 0 else value


def _hash_of(path: pathlib.Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
