"""The state of the generators that a training step may draw from."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """Returns the state of PyTorch's generators (the CPU's and the current GPU's), of Python's
    `random`, and of NumPy's global generator where NumPy is in use: tensors and plain values.
    """
    version, words, gauss = random.getstate()
    numpy: Any = sys.modules.get("numpy")
    state: dict[str, Any] = {
        "cpu": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],
        "python": [version, list(words), gauss],
        "numpy": None,
    }
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [str(name), [int(key) for key in keys], *rest]
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Puts back what `random_state` has returned."""
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][0])  # older checkpoints have one of every GPU
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and state["numpy"] is not None:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), *rest))


def set_random_state_of_rank(state: dict[str, Any], rank: int) -> None:
    """Puts back what rank 0 has saved. A rank that was seeded otherwise does not draw rank 0's
    numbers behind it: its seed is made of the state and the rank.
    """
    saved = torch.Generator()
    saved.set_state(state["cpu"])
    alike = saved.initial_seed() == torch.initial_seed()
    set_random_state(state)
    if rank == 0 or alike:
        return
    text = bytes(state["cpu"].tolist()) + rank.to_bytes(4, "little")
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "little")
    torch.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)
