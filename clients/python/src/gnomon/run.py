"""A supervised run: `gnomon.init` registers it, `run.step` reports a step and obeys directives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from gnomon.plan import PrecisionPlan
from gnomon.records import Fingerprint, InjectedFault

Broadcast = Callable[[Any], Any]


@dataclass(frozen=True)
class Capabilities:
    """What this trainer can do about a directive.

    plan: the smallest part of the model whose precision can be set apart from the rest.
    when: whether a new plan takes effect at a step boundary or at a restart.
    rollback: whether a checkpoint is loaded by `on_rollback`, at a restart, or not at all.
    exact_replay: whether a replay of the same plan gives the same bits.
    """

    plan: Literal["gemm", "module", "layer", "run"] = "gemm"
    when: Literal["live", "restart"] = "live"
    rollback: Literal["live", "restart", "none"] = "live"
    exact_replay: bool = False


@dataclass(frozen=True)
class Rollback:
    """What `on_rollback` gets: load this checkpoint; the next step is `to_step + 1`."""

    to_step: int
    checkpoint_uri: str
    plan: PrecisionPlan


@dataclass(frozen=True)
class ResumePoint:
    """Where a run that is started again goes on."""

    checkpoint: str
    step: int
    plan: PrecisionPlan


class Step:
    """One step, as the `with` statement gives it."""

    step: int  # 1, 2, ... of the run

    def log(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: Any = None,
        tokens: int | None = None,
        weights_hash: str | None = None,
    ) -> None:
        """Keeps numbers or tensors of one element; a thread reads tensors later."""
        raise NotImplementedError

    def batch(self, batch: Any) -> None:
        """Has `batch` hashed, where `run.step(batch=...)` could not have it yet."""
        raise NotImplementedError

    def __enter__(self) -> Step:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        raise NotImplementedError


class Run:
    """One training run under a controller."""

    id: str | None  # "run-3"; None until the controller has answered
    plan: PrecisionPlan  # in force
    resume_from: ResumePoint | None
    # How values of `Step.log` are kept in the loop, and read later by the reporting thread.
    capture: Callable[[Any], Any]
    read: Callable[[Any], float]

    @property
    def newest_step(self) -> int:
        """The newest step that was begun; 0 before the first."""
        raise NotImplementedError

    def start_from(self, step: int) -> None:
        """Says which step the loop goes on from, after a checkpoint was loaded."""
        raise NotImplementedError

    def step(self, batch: Any = None) -> Step:
        """The next step. A new plan or a rollback takes effect when it is entered."""
        raise NotImplementedError

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        weights_hash: str | None = None,
        size_bytes: int | None = None,
    ) -> None:
        """Reports a complete checkpoint of the newest step."""
        raise NotImplementedError

    def notice(self, kind: str, text: str) -> None:
        """Reports what people should know, like `data_mismatch`."""
        raise NotImplementedError

    def finish(self, outcome: str = "completed", final_loss: float | None = None) -> None:
        """Reports the end and waits until the reports are delivered, `flush_seconds` at most."""
        raise NotImplementedError

    def __enter__(self) -> Run:
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        raise NotImplementedError


def init(
    *,
    project: str,
    name: str,
    plan: str | os.PathLike[str] | PrecisionPlan,
    url: str | None = None,
    model: Any = None,
    sites: Sequence[str] | None = None,
    layers: int | None = None,
    framework: str = "",
    tags: Sequence[str] = (),
    checkpoint_format: str = "",
    capabilities: Capabilities | None = None,
    fingerprint: Fingerprint | None = None,
    parameters: int | None = None,
    total_steps: int = 0,
    checkpoint_every: int = 0,
    tokens_per_step: int = 0,
    seed: int = 0,
    faults: Sequence[InjectedFault] = (),
    trainer_replays: bool = False,
    trainer_confirms: bool = False,
    directory: str | os.PathLike[str] = "gnomon",
    mode: Literal["online", "offline", "disabled"] = "online",
    on_plan: Callable[[PrecisionPlan], None] | None = None,
    on_rollback: Callable[[Rollback], None] | None = None,
    on_checkpoint: Callable[[], None] | None = None,
    on_loss: Literal["continue", "bf16", "pause"] | None = None,
    grace_seconds: float | None = None,
    spool_bytes_max: int = 64 << 20,
    flush_seconds: float = 30.0,
    rank: int | None = None,
    broadcast: Broadcast | None = None,
    broadcast_every: int = 1,
) -> Run:
    """Begins or goes on with the run PROJECT/NAME."""
    raise NotImplementedError
