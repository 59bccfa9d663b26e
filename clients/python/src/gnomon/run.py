"""A supervised run: `run.step` reports a step, and obeys directives when it is entered."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from gnomon import boundary
from gnomon.errors import ConfigError, GnomonError, RolledBack, Stopped
from gnomon.outbox import QUEUE_MAX
from gnomon.plan import PrecisionPlan
from gnomon.ranks import Ranks
from gnomon.records import Directive
from gnomon.step import Step, capture
from gnomon.supervision import Supervision

log = logging.getLogger("gnomon")

_FLUSH_AT_EXIT_SECONDS = 5.0
_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Capabilities:
    """What this trainer can do about a directive.

    plan: the smallest part of the model whose precision can be set apart from the rest.
    when: whether a new plan takes effect at a step boundary or at a restart.
    rollback: whether a checkpoint is loaded by `on_rollback`, at a restart, or not at all.
    exact_replay: whether a replay of the same plan gives the same bits.
    compiled: whether its steps run compiled code (torch.compile).
    """

    plan: Literal["gemm", "module", "layer", "run"] = "gemm"
    when: Literal["live", "restart"] = "live"
    rollback: Literal["live", "restart", "none"] = "live"
    exact_replay: bool = False
    compiled: bool = False


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


@dataclass(frozen=True)
class Start:
    """What rank 0 has found in the run's directory."""

    plan: str
    attempts: int = 0
    checkpoint: str = ""
    step: int = -1  # of the checkpoint; -1: there is none
    must: bool = False  # a rollback: to this step and no other


class Run:
    """One training run under a controller. `gnomon.init` makes it.

    plan: in force. sites, layers: of the model. resume_from: where to go on; None for a new run.
    capture, read: how `Step.log` keeps a value in the loop, and how a thread reads it later.
    """

    def __init__(
        self,
        plan: PrecisionPlan,
        sites: Sequence[str],
        layers: int,
        capabilities: Capabilities,
        ranks: Ranks,
        on_plan: Callable[[PrecisionPlan], object] | None = None,
        on_rollback: Callable[[Rollback], object] | None = None,
        on_checkpoint: Callable[[], object] | None = None,
        flush_seconds: float = 30.0,
    ) -> None:
        self.plan = plan
        self.sites = list(sites)
        self.layers = layers
        self.capabilities = capabilities
        self.resume_from: ResumePoint | None = None
        self.capture: Callable[[Any], Any] = capture
        self.read: Callable[[Any], float] = float
        self._ranks = ranks
        self._on_plan = on_plan
        self._on_rollback = on_rollback
        self._on_checkpoint = on_checkpoint
        self._flush_seconds = flush_seconds
        self._lead: Supervision | None = None
        self._attention = True  # the first boundary begins the attempt
        self._shares = ranks.broadcast is not None  # then each boundary looks whether it is due
        self._queue: deque[Any] = deque()  # of the outbox, once there is one
        self._woken = threading.Event()
        self._newest = 0
        self._version = plan.version
        self._attempt = 0
        self._begun = False
        self._start = Start("")
        self._started_from: int | None = None
        self._stopped = False
        self._over = False
        self._inside = False
        self._rolled_back = False
        self._held: list[tuple[str, int, str | None, int | None]] = []
        self._train_seconds = 0.0

    @property
    def id(self) -> str | None:
        """The run's name at the controller, like "run-3"; None until it has answered."""
        return self._lead.run_id if self._lead is not None else None

    @property
    def newest_step(self) -> int:
        """The newest step that was begun; 0 before the first."""
        return self._newest

    def start_from(self, step: int) -> None:
        """Says which step the loop goes on from, after a checkpoint of it was loaded.

        Raises GnomonError once a step was begun, and for another step than a rollback asks for.
        """
        if self._begun:
            raise GnomonError("start_from comes before the first step and the first checkpoint")
        if step < 0:
            raise ConfigError("step", str(step), "0 or the step of the checkpoint that was loaded")
        if self._start.must and step != self._start.step:
            raise GnomonError(
                f"the controller rolled this run back to step {self._start.step}, but the loop "
                f"starts from step {step}: load {self._start.checkpoint}"
            )
        self._started_from = step
        self._newest = step

    def step(self, batch: Any = None) -> Step:
        """The next step. A new plan or a rollback takes effect when it is entered.

        batch: what it trains on; its hash goes with the report. Entering raises Stopped,
        RestartRequired, Replaced, RanksDisagree; and RolledBack where a batch was given that is of
        another step by now.
        """
        return Step(self, batch)

    def checkpoint(
        self,
        path: str | os.PathLike[str],
        *,
        step: int | None = None,
        weights_hash: str | None = None,
        size_bytes: int | None = None,
    ) -> None:
        """Reports a checkpoint that is complete. It is of the newest step, unless `step` says.

        path: a file or a directory, or a URI like s3://...; `memory:...` is a state that this
        process alone has. On ranks other than 0 this does nothing.
        """
        uri = _uri_of(path)
        if self._over:
            return log.warning("the checkpoint %s is not reported: the run is finished", uri)
        self._begin()
        of = self._newest if step is None else step
        if self._inside and of == self._newest:
            self._held.append((uri, of, weights_hash, size_bytes))  # behind its step's report
        elif self._lead is not None:
            self._lead.checkpoint(uri, of, self._newest, weights_hash, size_bytes)

    def is_needed(self, path: str | os.PathLike[str]) -> bool:
        """Whether a checkpoint must not be deleted yet: the controller, or a restart, needs it.

        True for each that the controller does not know yet, and on ranks other than 0.
        """
        return self._over or self._lead is None or self._lead.is_needed(_uri_of(path))

    def notice(self, kind: str, text: str) -> None:
        """Reports what people should know, like `data_mismatch`."""
        if self._lead is not None and not self._over:
            self._lead.notice(kind, text, self._newest)

    def finish(self, outcome: str = "completed", final_loss: float | None = None) -> None:
        """Reports the end and waits until all is delivered, `flush_seconds` at most.

        outcome: "completed", "stopped" or "failed". final_loss: held-out loss in BF16, nats.
        """
        if outcome not in ("completed", "stopped", "failed"):
            raise ConfigError("outcome", repr(outcome), '"completed", "stopped" or "failed"')
        if self._over:
            return
        if self._lead is not None and self._begun:
            outcome = "stopped" if self._stopped and outcome == "completed" else outcome
            self._lead.finish(outcome, self._newest, final_loss, self._train_seconds)
        self._close(self._flush_seconds)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Finishes the run; a failed loop reports no end, since it may be started again."""
        if kind is None or isinstance(error, Stopped):
            self.finish("completed" if kind is None else "stopped")
            return isinstance(error, Stopped)
        self._close(_FLUSH_AT_EXIT_SECONDS)
        return False

    def _leave_slowly(self, step: Step, has_loss: bool, succeeded: bool) -> None:
        """The end of a step that is not like most."""
        held, self._held = self._held, []
        if not succeeded:
            self._newest -= 1
            return
        if self._lead is None:
            return
        if not has_loss:
            raise GnomonError(
                f"step {step.step} was ended without a loss: call s.log(loss=...) within "
                "`with run.step() as s:`"
            )
        step.seconds = time.perf_counter() - step._begun
        step.time = time.time()
        self._train_seconds += step.seconds
        if len(self._queue) < QUEUE_MAX:
            self._queue.append(step)
        else:
            self._lead.outbox.overflow(step)
        for uri, of, weights_hash, size in held:
            self._lead.checkpoint(uri, of, self._newest, weights_hash, size)

    def _boundary(self, has_batch: bool) -> None:
        """Carries decisions out until the loop may go on."""
        self._require_open()
        self._begin()
        if self._shares and self._newest % self._ranks.every:
            return
        said = False
        while True:
            self._attention = self._shares
            mine = self._lead.decide() if self._lead is not None else None
            decisions, waits = self._ranks.share(mine) or ([], False)
            for decision in decisions:
                boundary.apply(self, decision)
            if decisions:
                continue
            if not waits:
                break
            if not said and self._lead is not None:
                log.warning("waiting at step %d: %s", self._newest, self._lead.why_waiting())
            said = True
            self._woken.wait(_WAIT_SECONDS)
            self._woken.clear()
            self._require_open()
        if self._rolled_back:
            self._rolled_back = False
            if has_batch:
                raise RolledBack(self._newest)

    def _require_open(self) -> None:
        if self._over:
            raise GnomonError("the run is finished; gnomon.init begins another one")

    def _begin(self) -> None:
        """Begins the attempt, once."""
        if self._begun:
            return
        start = self._start
        if start.step >= 0 and self._started_from is None:
            raise GnomonError(
                f"this run goes on: it has a checkpoint of step {start.step}. Load "
                f"run.resume_from.checkpoint ({start.checkpoint}) and call run.start_from(step); "
                "start_from(0) begins anew, another name makes another run"
            )
        self._begun = True
        if self._on_plan is not None:
            self._on_plan(self.plan)
        self._attempt = start.attempts + 1
        if self._lead is not None:
            cause = "rollback" if start.must else "restart" if start.attempts else "start"
            self._lead.begin_attempt(cause, self._newest, self.plan)

    def _attend(self) -> None:
        """From any thread: the next step's boundary has something to do."""
        self._attention = True
        self._woken.set()

    def _set_plan(self, plan: PrecisionPlan) -> None:
        self.plan = plan
        self._version = plan.version

    def _plan_of_checkpoint(self, directive: Directive) -> PrecisionPlan:
        """The plan that a rollback's checkpoint was made under, as far as rank 0 knows it."""
        text = ""
        if self._lead is not None:
            state = self._lead.state
            for checkpoint in state.checkpoints:
                if checkpoint.uri == directive.checkpoint_uri:
                    text = state.plans.get(str(checkpoint.plan_version), "")
        text = self._ranks.share(text)
        return PrecisionPlan.parse(text).bind(self.sites, self.layers) if text else self.plan

    def _rolled_back_to(self, step: int) -> None:
        self._newest = step
        self._attempt += 1
        self._rolled_back = True

    def _resume(self, start: Start) -> None:
        self._start = start
        if start.plan:
            self._set_plan(PrecisionPlan.parse(start.plan).bind(self.sites, self.layers))
        if start.step >= 0:
            self.resume_from = ResumePoint(start.checkpoint, start.step, self.plan)

    def _lead_with(self, lead: Supervision) -> None:
        self._lead = lead
        lead.start()
        self._queue = lead.outbox.queue
        atexit.register(self._at_exit)
        _open_runs.add(self)

    def _at_exit(self) -> None:
        if not self._over and self._stopped:
            self.finish("stopped")
        self._close(_FLUSH_AT_EXIT_SECONDS)

    def _close(self, seconds: float) -> None:
        if self._over:
            return
        self._over = True
        self._attend()
        if self._lead is not None:
            self._lead.flush(seconds)
            self._lead.close()
            atexit.unregister(self._at_exit)


_open_runs: weakref.WeakSet[Run] = weakref.WeakSet()


def _forget_runs() -> None:
    """In a forked process, which has none of the threads: it reports nothing."""
    for run in list(_open_runs):
        run._lead = None
        run._over = True


os.register_at_fork(after_in_child=_forget_runs)


def _uri_of(path: str | os.PathLike[str]) -> str:
    uri = os.fspath(path)
    return uri if "://" in uri or uri.startswith("memory:") else os.path.abspath(uri)


def wait_until_registered(run: Run, seconds: float) -> bool:
    """Waits until the controller has answered; for tests and programs that need `run.id`."""
    deadline = time.monotonic() + seconds
    while run.id is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return run.id is not None
