"""Which of several processes this is, and how they come to the same decisions.

Rank 0 alone talks to the controller. At step boundaries it gives the others what is to be done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnomon.errors import ConfigError, RanksDisagree

Broadcast = Callable[[Any], Any]


@dataclass(frozen=True)
class Ranks:
    """broadcast: gives all ranks the argument that rank 0 called it with; None: one process.

    every: steps between two boundaries at which rank 0 shares its decisions.
    """

    rank: int = 0
    broadcast: Broadcast | None = None
    every: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        return value if self.broadcast is None else self.broadcast(value if self.leads else None)

    def require_same(self, what: str, value: str) -> None:
        """Raises RanksDisagree on the ranks whose value is not that of rank 0."""
        its = self.share(value)
        if its != value:
            raise RanksDisagree(
                f"{what} differs between ranks: {its} on rank 0, {value} on rank {self.rank}. "
                "Give all ranks the same"
            )


def find_ranks(rank: int | None, broadcast: Broadcast | None, every: int) -> Ranks:
    """What was given, or else torch.distributed where that is initialised. Raises ConfigError."""
    if every < 1:
        raise ConfigError("broadcast_every", str(every), "a number of steps from 1 on")
    if broadcast is not None:
        return Ranks(_own_rank(rank), broadcast, every)
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        if distributed.get_world_size() == 1:
            return Ranks()

        # On the GPU's group each boundary would wait for what the GPU has still to do.
        group = distributed.new_group(backend="gloo") if distributed.is_gloo_available() else None

        def broadcast_object(value: Any) -> Any:
            values = [value]
            distributed.broadcast_object_list(values, src=0, group=group)
            return values[0]

        return Ranks(distributed.get_rank(), broadcast_object, every)
    own = _own_rank(rank)
    if own != 0:
        accepted = (
            f"a function that gives all ranks what rank 0 called it with, since this is rank {own} "
            "(torch.distributed, once it is initialised, is found without it)"
        )
        raise ConfigError("broadcast", "None", accepted)
    return Ranks()


def _own_rank(rank: int | None) -> int:
    """Lightning's launcher sets LOCAL_RANK alone for the processes that it starts."""
    said = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    return int(said) if rank is None else rank
