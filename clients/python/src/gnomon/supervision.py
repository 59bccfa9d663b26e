"""What rank 0 keeps and sends: state, spool, threads. Other ranks have none of it.

`decide` says what is to be done at a step boundary; `run.py` does it on all ranks alike and comes
back here with what became of it.
"""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gnomon.connection import ClientOptions, Connection
from gnomon.directives import DirectiveInbox, ack_target, shortened, used_number
from gnomon.directory_lock import DirectoryLock
from gnomon.errors import ConfigError
from gnomon.json_record import from_json, to_json
from gnomon.outbox import Outbox
from gnomon.plan import PrecisionPlan
from gnomon.records import (
    AttemptStart,
    CheckpointReport,
    Directive,
    DirectiveAck,
    RunFinished,
    RunRegistration,
    TrainerNotice,
)
from gnomon.reporter import Contact, Reporter, Standing
from gnomon.run_state import KnownCheckpoint, RunState, write_atomically
from gnomon.spool import Spool
from gnomon.step import report_of

PLAN_WITHOUT_CONTROLLER = -1
_VERSIONS_MAX = 64
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAVE_SECONDS = 60.0


@dataclass
class SupervisionOptions:
    """on_loss, grace_seconds: None is what the run's policy says."""

    client: ClientOptions
    registration: RunRegistration
    folder: pathlib.Path
    offline: bool = False
    on_loss: str | None = None
    grace_seconds: float | None = None
    spool_bytes_max: int = 64 << 20


@dataclass(frozen=True)
class Decision:
    """What all ranks do at a boundary: a directive, or one of the client's own.

    kind: a directive's, or `bf16` and `plan_again` (the controller is away, is back), `replaced`.
    """

    kind: str
    directive: Directive | None = None
    plan: str = ""
    reason: str = ""


class Supervision:
    """Takes the run's directory. Raises ConfigError where another trainer has it."""

    def __init__(
        self, options: SupervisionOptions, log: logging.Logger, on_attention: Callable[[], None]
    ) -> None:
        self._options = options
        self._log = log
        self._on_attention = on_attention
        self._state_file = options.folder / "state.json"
        self._lock = threading.RLock()
        try:
            options.folder.mkdir(parents=True, exist_ok=True)
            self._lock_file = DirectoryLock(options.folder)
        except OSError as error:
            raise _unwritable(options.folder, error) from None
        try:
            self.state = self._load_state()
            if not options.offline:
                Connection(options.client)  # says what is named wrong before anything starts
            # For gnomon-send.
            write_atomically(options.folder / "registration.json", to_json(options.registration))
            self.spool = Spool(options.folder / "spool", options.spool_bytes_max)
        except OSError as error:
            self._lock_file.close()
            raise _unwritable(options.folder, error) from None
        except BaseException:
            self._lock_file.close()
            raise
        self.contact = Contact()
        self.plan_before_loss = ""
        self._versions: list[tuple[int, int, int]] = []  # first step, plan version, attempt
        self.outbox: Outbox
        self._reporter: Reporter | None = None
        self._inbox: DirectiveInbox | None = None

    def start(self) -> None:
        """Begins to report. What a crash may have kept from the spool is sent again."""
        options = self._options
        self.outbox = Outbox(
            self.spool,
            report_of,
            self._log,
            waits_when_full=options.on_loss in ("bf16", "pause"),
            on_tick=self._tick,
        )
        if self.state.last_ack is not None:
            self.outbox.put(ack_target(self.state.last_directive), self.state.last_ack)
        if self.state.attempts:
            self.outbox.put("attempts", self.state.attempts[-1])
        if options.offline:
            return
        arguments = (self.spool, self.contact, self._log)
        self._reporter = Reporter(
            options.client, options.registration, self.standing, *arguments, self._replaced
        )
        self._inbox = DirectiveInbox(
            options.client,
            self._reporter,
            self.standing,
            self._pending_number,
            self.outbox,
            self.contact,
            self._log,
            self._on_attention,
        )

    @property
    def run_id(self) -> str | None:
        return (self._reporter.wait_for_run(0) or None) if self._reporter else None

    def standing(self) -> Standing:
        with self._lock:
            state = self.state
            return Standing(list(state.attempts), state.last_directive, state.newest_plan_version)

    def decide(self) -> tuple[list[Decision], bool]:
        """What to do next at this boundary; where nothing is left, whether the loop waits."""
        if self._reporter is not None and self._reporter.replaced is not None:
            return [Decision("replaced", reason=self._reporter.replaced)], False
        # The controller is back: its directives come after the plan that was in force before.
        if self.plan_before_loss and self.contact.away_seconds() == 0:
            return [Decision("plan_again", plan=self.plan_before_loss)], False
        decisions: list[Decision] = []
        # One at a time: what it does counts for the next one.
        while not decisions and self._inbox is not None:
            directive = self._inbox.pop()
            if directive is None:
                break
            if directive.number > self.state.last_directive:
                decisions.append(Decision(directive.kind, directive))
            else:
                self.reject_used(directive)
        action, lost = self._absence()
        if not decisions and action == "bf16" and lost and not self.plan_before_loss:
            text = PrecisionPlan.bf16(PLAN_WITHOUT_CONTROLLER).to_toml()
            decisions.append(Decision("bf16", plan=text))
        waits = self.state.paused or (action == "pause" and lost) or self.outbox.blocked
        return decisions, waits

    def why_waiting(self) -> str:
        """For people, while the loop waits at a boundary."""
        if self.outbox.blocked:
            return f"the spool in {self.spool.directory} is full"
        if self.state.paused:
            run = self.run_id or "RUN"
            return f"paused; to go on: gnomon override {run} resume --owner ME --reason WHY"
        away, why = self.contact.away_seconds(), self.contact.why
        return f"no controller for {away:.0f} s (on_loss = pause): {why}"

    def begin_attempt(self, cause: str, base_step: int, plan: PrecisionPlan) -> None:
        """The next attempt, whose first step is `base_step` + 1."""
        with self._lock:
            pending_ack = self.state.pending_ack
            pending = self.state.pending
            if pending is not None and pending_ack is not None:
                self._remember(pending, pending_ack)
                self.state.pending = self.state.pending_ack = None
            attempt = AttemptStart(self.state.attempt + 1, base_step, cause, plan.version)
            attempt.fingerprint = self._options.registration.fingerprint
            attempt.host = os.uname().nodename
            attempt.time = time.time()
            self.state.attempts.append(attempt)
            self.state.roll_back(base_step)
            self.state.finished = ""
            self._apply_plan(plan, base_step + 1)
            self.save()
        if pending is not None and pending_ack is not None:
            self.outbox.put(ack_target(pending.number), pending_ack)
        self.outbox.put("attempts", attempt)

    def take_plan(self, plan: PrecisionPlan, first_step: int) -> None:
        """A plan that is in force from `first_step` on; `acknowledge` writes it to the disk."""
        with self._lock:
            self.plan_before_loss = ""
            self._apply_plan(plan, first_step)

    def roll_back(self, directive: Directive, newest_step: int, plan: PrecisionPlan) -> None:
        """The answer and the new attempt reach the disk as one."""
        with self._lock:
            ack = self._ack("applied", newest_step, "")
            self._remember(directive, ack)
            self.plan_before_loss = ""
            self.outbox.put(ack_target(directive.number), ack)
            self.begin_attempt("rollback", directive.to_step or 0, plan)

    def acknowledge(self, directive: Directive, state: str, step: int, reason: str = "") -> None:
        """Answers a directive: its number is on disk before the controller has the answer."""
        with self._lock:
            ack = self._ack(state, step, reason)
            self._remember(directive, ack)
            self.save()
        self.outbox.put(ack_target(directive.number), ack)

    def defer(self, directive: Directive, step: int) -> None:
        """The directive takes effect when the trainer is started again."""
        with self._lock:
            self.state.pending = directive
            self.state.pending_ack = self._ack("applied", step, "")
            self.save()

    def reject_pending(self, reason: str) -> None:
        """The directive that waited for this start cannot take effect. `start` sends the answer."""
        with self._lock:
            pending, ack = self.state.pending, self.state.pending_ack
            assert pending is not None
            self._log.error("directive %d is rejected: %s", pending.number, reason)
            step = ack.step if ack is not None and ack.step is not None else 0
            self._remember(pending, self._ack("rejected", step, reason))
            self.state.pending = self.state.pending_ack = None
            self.save()

    def reject_used(self, directive: Directive) -> None:
        reason = used_number(directive.number, self.state.last_directive)
        ack = DirectiveAck("rejected", reason=reason, time=time.time())
        self.outbox.put(ack_target(directive.number), ack)

    def act_on_loss(self, plan: PrecisionPlan, before: PrecisionPlan, newest_step: int) -> None:
        """The BF16 plan without a controller is in force: a notice goes before its steps."""
        self.plan_before_loss = before.to_toml()
        self._versions.append((newest_step + 1, plan.version, self.state.attempt))
        text = f"no controller: every GEMM in BF16 from step {newest_step + 1} on (on_loss = bf16)"
        notice = TrainerNotice(self.state.attempt, newest_step, "plan_without_controller", text)
        notice.plan, notice.plan_version = plan.to_toml(), plan.version
        notice.time = time.time()
        self.outbox.put("notices", notice)

    def checkpoint(
        self, uri: str, step: int, newest_step: int, weights_hash: str | None, size: int | None
    ) -> None:
        """Reports a checkpoint, and keeps where it is for the next start."""
        versions = [it for it in self._versions if it[0] <= step + 1]
        if step > newest_step or not versions:
            self._log.warning(
                "the checkpoint of step %d is not reported: the run is at step %d",
                *(step, newest_step),
            )
            return
        first, version, attempt = versions[-1]
        if first == step + 1 and len(versions) > 1 and versions[-2][2] == attempt:
            version = versions[-2][1]  # the plan that the step itself ran under
        report = CheckpointReport(attempt, step, uri, version)
        report.bytes, report.weights_hash, report.time = size, weights_hash, time.time()
        with self._lock:
            self.state.add_checkpoint(KnownCheckpoint(attempt, step, uri, version))
            self.save()
        self.outbox.put("checkpoints", report)

    def is_needed(self, uri: str) -> bool:
        """Whether the controller, or a start after this one, may still ask for a checkpoint."""
        # The unsent ones first: a report that is answered meanwhile is in the answer's list.
        self.outbox.flush()
        unsent = [it.body for it in self.spool.others() if it.target == "checkpoints"]
        if any(from_json(CheckpointReport, body).uri == uri for body in unsent):
            return True
        newest = self.state.newest_checkpoint()
        protected = self._reporter.protected if self._reporter is not None else None
        return protected is None or uri in protected or (newest is not None and newest.uri == uri)

    def notice(self, kind: str, text: str, newest_step: int) -> None:
        notice = TrainerNotice(max(self.state.attempt, 1), newest_step, kind, shortened(text))
        notice.time = time.time()
        self.outbox.put("notices", notice)

    def set_paused(self, paused: bool) -> None:
        self.state.paused = paused

    def finish(
        self, outcome: str, step: int, final_loss: float | None, train_seconds: float
    ) -> None:
        """Directives still open are rejected before the end is reported."""
        for directive in self._inbox.close() if self._inbox is not None else []:
            self.acknowledge(directive, "rejected", step, f"the run has {outcome}")
        finished = RunFinished(outcome, step, final_loss=final_loss, train_seconds=train_seconds)
        finished.time = time.time()
        self.outbox.put("finished", finished)
        with self._lock:
            self.state.finished = outcome
            self.save()

    def flush(self, seconds: float) -> None:
        """Waits until the controller has all reports, `seconds` at most."""
        deadline = time.monotonic() + seconds
        while not self.outbox.flush() and time.monotonic() < deadline:
            time.sleep(0.05)
        while self._reporter is not None and self._reporter.replaced is None:
            self.spool.wake()
            if self.spool.wait_until_empty(0.1) or time.monotonic() >= deadline:
                break
        self.spool.sync()
        if self._options.offline:
            return
        if self.spool.count and (self._reporter is None or self._reporter.replaced is None):
            self._log.warning(
                "%d reports are not delivered yet; the next start sends them, or: gnomon-send %s",
                *(self.spool.count, self._options.folder),
            )
        if self._reporter is not None and self._reporter.refused:
            self._log.error(
                "the controller refused %d reports; they are in %s",
                *(self._reporter.refused, self.spool.directory / "refused.jsonl"),
            )

    def close(self) -> None:
        """Ends the threads. What was not sent stays in the spool."""
        if self._inbox is not None:
            self._inbox.close()
        self.outbox.close()
        if self._reporter is not None:
            self._reporter.close()
        self.spool.close()
        self._lock_file.close()

    def save(self) -> None:
        """Waits while the disk is full: a directive would be applied twice otherwise. What else
        the disk refuses is tried for a minute. Raises OSError.
        """
        give_up = time.monotonic() + _SAVE_SECONDS
        complained = False
        while True:
            try:
                with self._lock:
                    return self.state.save(self._state_file)
            except OSError as error:
                if error.errno not in _NO_ROOM and time.monotonic() >= give_up:
                    raise
                if not complained:
                    self._log.error("TRAINING WAITS, the run's state is not written: %s", error)
                complained = True
                time.sleep(0.5)

    def _load_state(self) -> RunState:
        registration = self._options.registration
        name, job = registration.name, registration.job_id
        state = RunState.load(self._state_file) or RunState(name, job)
        if (state.project, state.name) != (name, job):
            accepted = f"another directory: this one is of {state.project}/{state.name}"
            raise ConfigError("directory", str(self._options.folder), accepted)
        if state.finished == "completed":
            step = state.attempts[-1].base_step if state.attempts else 0
            raise ConfigError(
                "name",
                repr(job),
                f"another name: this run was completed (its last attempt began at step {step}). "
                f"gnomon-send {self._options.folder} sends what it has not delivered",
            )
        if state.base_plan and state.base_plan != registration.base_plan:
            self._log.warning(
                "the plan has changed since %s/%s began; the run stays in plan %d. A new plan "
                "needs another name",
                *(name, job, PrecisionPlan.parse(state.plan or state.base_plan).version),
            )
            registration.base_plan = state.base_plan
        state.base_plan = registration.base_plan
        return state

    def _apply_plan(self, plan: PrecisionPlan, first_step: int) -> None:
        self.state.set_plan(plan.version, plan.to_toml())
        self._versions = [it for it in self._versions if it[0] < first_step][-_VERSIONS_MAX:]
        self._versions.append((first_step, plan.version, self.state.attempt))

    def _ack(self, state: str, step: int, reason: str) -> DirectiveAck:
        ack = DirectiveAck(state, attempt=self.state.attempt, step=step, time=time.time())
        ack.reason = shortened(reason)
        return ack

    def _remember(self, directive: Directive, ack: DirectiveAck) -> None:
        self.state.last_directive = max(self.state.last_directive, directive.number)
        self.state.last_ack = ack
        version = directive.plan_version or 0
        self.state.newest_plan_version = max(self.state.newest_plan_version, version)

    def _pending_number(self) -> int:
        return self.state.pending.number if self.state.pending is not None else 0

    def _absence(self) -> tuple[str, bool]:
        """What to do without a controller, and whether it has been away for long enough. A trainer
        that would have to be started again for BF16 goes on as it is."""
        policy = self._reporter.registered if self._reporter is not None else None
        action = self._options.on_loss or (policy.on_loss if policy else None) or "continue"
        can = self._options.registration.capabilities
        if action == "bf16" and can is not None and can.when == "restart":
            action = "continue"
        grace = self._options.grace_seconds
        if grace is None:
            stated = policy.grace_seconds if policy is not None else None
            grace = 60.0 if stated is None else stated
        away = self.contact.away_seconds()
        return action, away > 0 and away >= grace

    def _tick(self) -> None:
        action, lost = self._absence()
        acts = lost and action != "continue" and not self.plan_before_loss
        back = bool(self.plan_before_loss) and self.contact.away_seconds() == 0
        if acts or back or self.outbox.blocked:
            self._on_attention()

    def _replaced(self, why: str) -> None:
        self._on_attention()


def _unwritable(folder: pathlib.Path, error: OSError) -> ConfigError:
    return ConfigError("directory", str(folder), f"a folder that can be written ({error})")
