"""A BF16 shadow in the training process itself: no verifier, no checkpoint.

    shadow = Shadow(model, optimizer, scheduler, train_step=train_step, evaluate=evaluate)
    for batch in loader:
        with run.step(batch=batch) as s:
            loss, norm = shadow.step(batch)
            s.log(loss=loss, grad_norm=norm)
        shadow.verify()

Every `every` steps it keeps the state and the next `steps` batches. Behind the last of them it
goes back, trains on the same batches with FP8 off, compares what the two weights make of held-out
text in BF16, and puts the run's state back bit for bit. All ranks call it together.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.batch import batch_hash
from gnomon.errors import ConfigError
from gnomon.records import ReplayStep
from gnomon.torch.arms import ARMS, arm
from gnomon.torch.checkpoint import Stateful
from gnomon.torch.faults import Fault
from gnomon.torch.plan_linear import set_step
from gnomon.torch.ranks import all_gathered
from gnomon.torch.replay import Job, StepOutcome, heldout_losses, standard_error
from gnomon.torch.snapshot import Place, Snapshot
from gnomon.torch.weights_hash import weights_hash


@dataclass(frozen=True)
class ShadowArm:
    """One arm of a window: its steps, and its held-out loss in BF16 behind the last.

    gap: run_end_loss_bf16 − end_loss_bf16 in nats per token: above 0 the run is worse than the arm.
    gap_error: the standard error of `gap`, paired over held-out sequences.
    reproduces: whether the weights behind the last step have the bits of the run's.
    """

    steps: Sequence[ReplayStep]
    end_loss_bf16: float
    gap: float
    gap_error: float
    reproduces: bool
    seconds: float


@dataclass(frozen=True)
class ShadowWindow:
    """What was measured of the steps behind `start_step`. Losses are means in nats per token.

    start_loss_bf16, start_loss_plan: held-out losses of the start's weights in BF16 and as the plan
    has them. run_end_loss_bf16: of the run's own weights behind the last step, in BF16.
    """

    start_step: int
    run_losses: Sequence[float]
    start_loss_bf16: float
    start_loss_plan: float
    run_end_loss_bf16: float
    arms: Mapping[str, ShadowArm]
    eval_seconds: float

    @property
    def gap_percent(self) -> float:
        """100 · gap / loss of the arm `bf16`: the controller's D."""
        shadow = self.arms["bf16"]
        return 100 * shadow.gap / shadow.end_loss_bf16


@dataclass
class _Open:
    """A window whose steps the run is taking."""

    start_step: int
    start: Snapshot
    batches: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)


class Shadow:
    """Measures windows of a run in its own process.

    train_step(batch): one whole step; returns (loss, gradient norm).
    evaluate(): the loss of each held-out sequence of this rank, a vector; it leaves no trace.
    every, steps: a window begins behind every `every` steps and has `steps`.
    scheduler: anything with a state, or several in a list: schedulers, a gradient scaler.
    arms: what is replayed; "bf16" always. "same" shows whether this job reproduces itself.
    place: where the kept state is: "host", "device", "disk" (in `directory`).
    copy_batches: a loader uses its buffers again, so batches are copied.
    Raises ConfigError for numbers that make no windows.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Stateful | Sequence[Stateful] | None = None,
        *,
        train_step: Callable[[Any], StepOutcome],
        evaluate: Callable[[], Tensor],
        every: int = 200,
        steps: int = 20,
        arms: Sequence[str] = ("bf16",),
        place: Place = "host",
        directory: str | None = None,
        copy_batches: bool = False,
        faults: Sequence[Fault] = (),
        first_step: int = 0,
        on_window: Callable[[ShadowWindow], None] | None = None,
    ) -> None:
        if not 1 <= steps <= every:
            raise ConfigError("steps", str(steps), f"1 to every = {every}")
        unknown = [name for name in arms if name not in ARMS or name == "plan"]
        if unknown:
            raise ConfigError("arms", str(unknown), "some of bf16, same, fakequant, eager")
        self._model = model
        self._optimizer = optimizer
        self._others: Sequence[Stateful] = _listed(scheduler)
        self._job = Job(model, train_step, lambda step: None, evaluate, 0, faults=faults)
        self._every = every
        self._steps = steps
        self._arms = tuple(dict.fromkeys(("bf16", *arms)))
        self._place: Place = place
        self._directory = directory
        self._copy_batches = copy_batches
        self._on_window = on_window
        self._window: _Open | None = None
        self.newest_step = first_step

    def step(self, batch: Any) -> StepOutcome:
        """Takes the run's next step with `batch` and returns what `train_step` returned."""
        if self._window is None and self.newest_step % self._every == 0:
            self._window = _Open(self.newest_step, self._snapshot())
        self.newest_step += 1
        set_step(self._model, self.newest_step, self._job.faults)
        outcome = self._job.train_step(batch)
        if self._window is not None:
            self._window.batches.append(copy.deepcopy(batch) if self._copy_batches else batch)
            self._window.losses.append(outcome[0])
        return outcome

    def verify(self) -> ShadowWindow | None:
        """Behind a window's last step: measures it and returns it; else returns None at once."""
        window = self._window
        if window is None or len(window.batches) < self._steps:
            return None
        self._window = None
        end = self._snapshot()
        try:
            measured = self._measure(window)
        finally:
            end.restore()
            end.close()
            window.start.close()
            set_step(self._model, self.newest_step, self._job.faults)
        if self._on_window is not None:
            self._on_window(measured)
        return measured

    def drop(self, newest_step: int) -> None:
        """Gives up the window under way: the run goes on behind `newest_step` (a rollback)."""
        if self._window is not None:
            self._window.start.close()
        self._window = None
        self.newest_step = newest_step

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._model, self._optimizer, self._others, self._place, self._directory)

    def _measure(self, window: _Open) -> ShadowWindow:
        since = time.perf_counter()
        run_hash = weights_hash(self._model)
        run_end = self._heldout("bf16")
        window.start.restore()
        set_step(self._model, window.start_step, self._job.faults)
        start_bf16, start_plan = self._heldout("bf16"), self._heldout("same")
        eval_seconds = time.perf_counter() - since
        measured = {}
        for name in self._arms:
            window.start.restore()
            measured[name] = self._replay(window, name, run_end, run_hash)
        return ShadowWindow(
            start_step=window.start_step,
            run_losses=[_mean(float(loss)) for loss in window.losses],
            start_loss_bf16=float(start_bf16.mean()),
            start_loss_plan=float(start_plan.mean()),
            run_end_loss_bf16=float(run_end.mean()),
            arms=measured,
            eval_seconds=eval_seconds,
        )

    def _replay(self, window: _Open, name: str, run_end: Tensor, run_hash: str) -> ShadowArm:
        since = time.perf_counter()
        steps: list[ReplayStep] = []
        with arm(self._model, name):
            for step, batch in enumerate(window.batches, window.start_step + 1):
                set_step(self._model, step, self._job.faults)
                loss, norm = self._job.train_step(batch)
                steps.append(
                    ReplayStep(
                        step,
                        _mean(float(loss)),
                        grad_norm=float(norm),
                        batch_hash=batch_hash(batch),
                    )
                )
        steps[-1].weights_hash = weights_hash(self._model)
        seconds = time.perf_counter() - since
        end = self._heldout("bf16")
        return ShadowArm(
            steps=steps,
            end_loss_bf16=float(end.mean()),
            gap=float((run_end - end).mean()),
            gap_error=standard_error(run_end - end),
            reproduces=steps[-1].weights_hash == run_hash,
            seconds=seconds,
        )

    def _heldout(self, name: str) -> Tensor:
        """Returns the losses of the held-out sequences of all ranks."""
        return torch.cat(all_gathered(heldout_losses(self._job, name)))


def _listed(scheduler: Stateful | Sequence[Stateful] | None) -> Sequence[Stateful]:
    if scheduler is None:
        return ()
    return scheduler if isinstance(scheduler, Sequence) else (scheduler,)


def _mean(value: float) -> float:
    """Returns the mean over the ranks."""
    values = all_gathered(value)
    return math.fsum(values) / len(values)
