"""A BF16 shadow in the training process itself: no verifier, no checkpoint.

    shadow = Shadow(model, optimizer, scheduler, train_step=train_step, evaluate=evaluate)
    while run.newest_step < steps:
        with run.step() as s:  # its number may have gone back
            s.batch(batch := batch_of(s.step))
            loss, norm = shadow.step(batch)
            s.log(loss=loss, grad_norm=norm)
        shadow.verify()

Every `every` steps it keeps the state and the next `steps` batches. Behind the last of them it
goes back, trains on the same batches with FP8 off, compares what the two weights make of held-out
text in BF16, and puts the run's state back bit for bit. All ranks call it together.

With `run` it is the controller that orders the replays (`gnomon.init(trainer_replays=True,
checkpoint_every=steps)`, a policy with the same [window] every and steps): the kept states are
checkpoints whose URI begins with `memory:`, and `verify` answers the leases of this run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.errors import ConfigError, Rejected
from gnomon.run import Rollback, Run
from gnomon.torch.checkpoint import Stateful
from gnomon.torch.faults import Fault
from gnomon.torch.plan_linear import SiteChoice, plan_sites, set_step
from gnomon.torch.random_state import random_state, set_random_state
from gnomon.torch.ranks import broadcast, is_together, mean_of_ranks
from gnomon.torch.replay import ArmContext, Job, StepOutcome, replay
from gnomon.torch.shadow_leases import ShadowLeases
from gnomon.torch.snapshot import Place, Snapshot
from gnomon.torch.weights_hash import weights_hash
from gnomon.verify import ReplayFailed, ReplayResult, ReplayTask


@dataclass(frozen=True)
class ShadowWindow:
    """What was measured of the steps behind `start_step`: a result for each arm.

    run_losses: of the run's own steps, the mean over all ranks, nats per token.
    """

    start_step: int
    run_losses: Sequence[float]
    run_weights_hash: str
    results: Mapping[str, ReplayResult]

    def gap(self, arm: str = "bf16") -> float:
        """Returns how much worse the run's end is than the arm's: held-out loss in BF16, nats; NaN
        where a replay did not come to its end, since a step of it was not finite.
        """
        result = self.results[arm]
        return _number(result.run_end_loss_bf16) - _number(result.replay_end_loss_bf16)

    @property
    def gap_percent(self) -> float:
        """100 · gap / loss of the BF16 shadow: the controller's D. NaN as `gap` is."""
        return 100 * self.gap() / _number(self.results["bf16"].replay_end_loss_bf16)

    def reproduces(self, arm: str = "same") -> bool:
        """Returns whether the arm's weights have the bits of the run's behind the last step."""
        return self.results[arm].steps[-1].weights_hash == self.run_weights_hash


@dataclass(eq=False)
class _State:
    """The job at a step boundary. The windows that meet there share it."""

    step: int
    uri: str
    snapshot: Snapshot
    holders: int = 1

    def hold(self) -> _State:
        self.holders += 1
        return self

    def release(self) -> None:
        """That of the last holder gives the snapshot back."""
        self.holders -= 1
        if self.holders == 0:
            self.snapshot.close()


@dataclass(eq=False)
class _Window:
    """A window whose steps the run is taking, or has taken.

    choices: what the layers run in from its first step on; a plan comes after the state was kept.
    random: random numbers before its first step; the loop may have drawn some since the state.
    """

    attempt: int
    start: _State
    choices: dict[str, SiteChoice]
    random: dict[str, Any]
    end: _State | None = None
    batches: list[Any] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)

    def close(self) -> None:
        self.start.release()
        if self.end is not None:
            self.end.release()


class Shadow:
    """Measures windows of a run in its own process.

    train_step(batch): one whole step; returns (loss, gradient norm).
    evaluate(): the loss of each held-out sequence of this rank, a vector; it leaves no trace.
    heldout_tokens: how many tokens that reads, on all ranks.
    every, steps: a window begins behind every `every` steps and has `steps`.
    scheduler: anything with a state, or several in a list: schedulers, a gradient scaler.
    arms: what is replayed without `run`; "bf16" always. "same" shows whether this job reproduces
    itself. With `run`, the controller says it.
    place: where the kept state is: "host", "device", "disk" (in `directory`).
    copy_batches: a loader uses its buffers again, so batches are copied.
    keep: windows whose two states are kept with `run`, for an alarm's replays and rollbacks.
    use_arm: for other layers than PlanLinear: has them run in an arm.
    Raises ConfigError for numbers that make no windows, and a model without PlanLinear.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Stateful | Sequence[Stateful] | None = None,
        *,
        train_step: Callable[[Any], StepOutcome],
        evaluate: Callable[[], Tensor],
        heldout_tokens: int = 0,
        every: int = 200,
        steps: int = 20,
        arms: Sequence[str] = ("bf16",),
        place: Place = "host",
        directory: str | None = None,
        copy_batches: bool = False,
        faults: Sequence[Fault] = (),
        first_step: int = 0,
        on_window: Callable[[ShadowWindow], None] | None = None,
        run: Run | None = None,
        keep: int = 2,
        use_arm: ArmContext | None = None,
    ) -> None:
        if not 1 <= steps <= every:
            raise ConfigError("steps", str(steps), f"1 to every = {every}")
        if use_arm is None and not plan_sites(model):
            raise ConfigError("model", "no PlanLinear in it", "gnomon.torch.adopt, or use_arm=...")
        known = ("bf16", "same", "fakequant", "eager")
        if unknown := [name for name in arms if name not in known]:
            raise ConfigError("arms", str(unknown), f"some of {', '.join(known)}")
        self._model = model
        self._optimizer = optimizer
        self._others: Sequence[Stateful] = _listed(scheduler)
        self._job = Job(
            model, train_step, self._batch_of, evaluate, heldout_tokens, faults=faults, arm=use_arm
        )
        self._job.arms = (*known, "plan") if use_arm is None else ("bf16", "same", "plan")
        self._every, self._steps, self._keep = every, steps, max(keep, 1)
        self._arms = tuple(dict.fromkeys(("bf16", *arms)))
        self._place: Place = place
        self._directory = directory
        self._copy_batches = copy_batches
        self._on_window = on_window
        self._run = run
        self._leases = ShadowLeases(run) if run is not None else None
        self._here: _State | None = None  # with `run`: of the boundary where it is, once kept
        self._window: _Window | None = None
        self._kept: list[_Window] = []
        self._asked: _Window | None = None  # the one that is being replayed
        self._states = 0
        self.newest_step = first_step

    def step(self, batch: Any) -> StepOutcome:
        """Takes the run's next step with `batch` and returns what `train_step` returned, with the
        mean of all ranks' losses.
        """
        if self._window is None and self.newest_step % self._every == 0:
            start = self._state()
            attempt = self._run._attempt if self._run is not None else 0
            self._window = _Window(attempt, start, self._choices(), random_state())
        self._leave()
        self.newest_step += 1
        set_step(self._model, self.newest_step, self._job.faults)
        loss, norm = self._job.train_step(batch)
        loss = mean_of_ranks(loss)  # as of a replay
        if self._window is not None:
            self._window.batches.append(copy.deepcopy(batch) if self._copy_batches else batch)
            self._window.losses.append(loss)
        return loss, norm

    def verify(self) -> ShadowWindow | None:
        """Between two steps. Behind a window's last one it is measured and returned; with `run`,
        a lease that waits is answered, and None is returned. Else it returns at once.
        """
        window = self._window
        if window is not None and len(window.batches) == self._steps:
            self._window = None
            window.end = self._state()
            if self._leases is None:
                return self._measure(window)
            self._kept.append(window)
            self._thin()
        if self._leases is not None and (not is_together() or self.newest_step % self._steps == 0):
            self._leases.serve(self._answer)
        return None

    def roll_back(self, rollback: Rollback) -> None:
        """For `on_rollback`: puts the state of a `memory:` checkpoint back.
        Raises Rejected where it is not kept any more.
        """
        for window in self._kept:
            for state in (window.start, window.end):
                if state is not None and state.uri == rollback.checkpoint_uri:
                    state.snapshot.restore()
                    self.drop(state.step)
                    self._here = state.hold()
                    return
        raise Rejected(f"{rollback.checkpoint_uri} is not kept any more (keep = {self._keep})")

    def drop(self, newest_step: int) -> None:
        """Gives up the window under way: the run goes on behind `newest_step`."""
        if self._window is not None:
            self._window.close()
        self._window = None
        self._leave()
        self.newest_step = newest_step

    def close(self) -> None:
        """Gives back all states, and asks for no more leases."""
        self.drop(self.newest_step)
        while self._kept:
            self._kept.pop().close()
        if self._leases is not None:
            self._leases.close()

    def _measure(self, window: _Window) -> ShadowWindow:
        run_hash = weights_hash(self._model)
        assert window.end is not None
        choices = self._choices()
        results = {}
        try:
            for name in self._arms:
                task = ReplayTask(
                    "", 0, 0, 0, name, window.start.uri, window.start.step, self._steps
                )
                task.end_checkpoint, task.evaluate_endpoints = window.end.uri, True
                results[name] = self._replay(window, task)
        finally:
            self._go_back_to(window.end.snapshot, choices)
            window.close()
        losses = [float(loss) for loss in window.losses]
        measured = ShadowWindow(window.start.step, losses, run_hash, results)
        if self._on_window is not None:
            self._on_window(measured)
        return measured

    def _thin(self) -> None:
        """Gives back the oldest windows that the controller has no use for, then the oldest."""
        while len(self._kept) > self._keep:
            free = [i for i, window in enumerate(self._kept) if not self._is_needed(window)]
            # Rank 0 alone knows what is needed, and all ranks give back the same window.
            self._kept.pop(broadcast(free[0] if free else 0)).close()

    def _is_needed(self, window: _Window) -> bool:
        assert self._run is not None
        states = (window.start, window.end)
        return any(state is not None and self._run.is_needed(state.uri) for state in states)

    def _answer(self, task: ReplayTask) -> ReplayResult:
        """Replays what the controller asks for. Raises ReplayFailed for a window that is gone."""
        for window in self._kept:
            its = (window.attempt, window.start.uri, len(window.batches))
            if its == (task.attempt, task.checkpoint, task.steps):
                now, choices = self._snapshot(), self._choices()
                try:
                    return self._replay(window, task)
                finally:
                    self._go_back_to(now, choices)
                    now.close()
        raise ReplayFailed(f"{task.checkpoint}, {task.steps} steps: not kept (keep = {self._keep})")

    def _replay(self, window: _Window, task: ReplayTask) -> ReplayResult:
        self._asked = window
        try:
            return replay(self._job, task, self._load)
        finally:
            self._asked = None

    def _load(self, uri: str, step: int) -> None:
        window = self._asked
        assert window is not None
        for state in (window.start, window.end):
            if state is not None and (state.uri, state.step) == (uri, step):
                self._go_back_to(state.snapshot, window.choices)
                if state is window.start:
                    set_random_state(window.random)
                return
        raise ReplayFailed(f"{uri} of step {step} is not kept")

    def _batch_of(self, step: int) -> Any:
        assert self._asked is not None
        return self._asked.batches[step - self._asked.start.step - 1]

    def _state(self) -> _State:
        """Returns the state at this boundary. With a run it is kept and reported once: the
        controller takes one checkpoint of a step, and that of a rollback as the base behind it.
        """
        state = self._here
        if state is None:
            self._states += 1
            uri = f"memory:{self.newest_step}/{self._states}"
            state = _State(self.newest_step, uri, self._snapshot())
            if self._run is None:
                return state
            self._here = state
            self._run.checkpoint(uri, step=self.newest_step)
        return state.hold()

    def _leave(self) -> None:
        """The run leaves the boundary where it is."""
        if self._here is not None:
            self._here.release()
            self._here = None

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._model, self._optimizer, self._others, self._place, self._directory)

    def _choices(self) -> dict[str, SiteChoice]:
        return {site: module.choice for site, module in plan_sites(self._model).items()}

    def _go_back_to(self, snapshot: Snapshot, choices: Mapping[str, SiteChoice]) -> None:
        snapshot.restore()
        for site, module in plan_sites(self._model).items():
            module.choice = choices[site]


def _listed(scheduler: Stateful | Sequence[Stateful] | None) -> Sequence[Stateful]:
    if scheduler is None:
        return ()
    return scheduler if isinstance(scheduler, Sequence) else (scheduler,)


def _number(loss: float | None) -> float:
    return math.nan if loss is None else loss
