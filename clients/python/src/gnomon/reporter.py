"""Registers the run and sends the spool's records in order, on a thread of its own.

Sending twice is harmless, so what was not acknowledged is sent again. A controller whose ledger is
new is given what the trainer knows: the run, its attempts, how far directives and plans are
numbered.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gnomon.connection import Backoff, ClientOptions, Connection, asked_pause
from gnomon.description import Description
from gnomon.errors import SERVER_ERRORS_MAX, ApiError, ConnectionFailed
from gnomon.json_record import from_json, to_json, to_value
from gnomon.plan import PrecisionPlan
from gnomon.records import (
    AttemptStart,
    ReportAck,
    RunRegistered,
    RunRegistration,
    TrainerNotice,
)
from gnomon.refused_log import RefusedLog
from gnomon.spool import STEPS, Spool, SpoolRecord

_BATCH_RECORDS_MAX = 5_000
_BATCH_BYTES_MAX = 2 << 20
_URGENT_RECORDS = 500
_REQUEST_SECONDS = 20.0
_SEND_SECONDS = 2.0

INCARNATION = secrets.token_hex(8)
_STARTED = time.monotonic()


def own(target: str) -> str:
    """A request's target with what it says of this process."""
    return f"{target}{'&' if '?' in target else '?'}incarnation={INCARNATION}"


@dataclass
class Standing:
    """What the trainer knows of its run, whatever becomes of the controller's ledger."""

    attempts: list[AttemptStart] = field(default_factory=list)
    last_directive: int = 0
    newest_plan_version: int = 0


class Contact:
    """Whether the controller answers, as all threads that talk to it see it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._why = ""
        self._logged_at = -60.0

    def succeeded(self) -> None:
        with self._lock:
            self._away_since = None

    def failed(self, why: str) -> None:
        with self._lock:
            self._why = why
            if self._away_since is None:
                self._away_since = time.monotonic()

    def away_seconds(self) -> float:
        """Since the first failure after the last success; 0 while it answers."""
        with self._lock:
            return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    @property
    def why(self) -> str:
        """What the newest failure was."""
        with self._lock:
            return self._why

    def may_log_refusal(self) -> bool:
        """Once a minute, whoever asks: of a token, or of the run itself."""
        with self._lock:
            due = time.monotonic() - self._logged_at >= 60
            if due:
                self._logged_at = time.monotonic()
            return due


class Reporter:
    """Starts its thread at once. Raises ConfigError for options that cannot be accepted."""

    def __init__(
        self,
        options: ClientOptions,
        registration: RunRegistration,
        standing: Callable[[], Standing],
        spool: Spool,
        contact: Contact,
        log: logging.Logger,
        on_replaced: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._connection = Connection(options)
        self._registration = registration
        self._standing = standing
        self._spool = spool
        self._contact = contact
        self._log = log
        self._on_replaced = on_replaced
        self._refused = RefusedLog(spool.directory / "refused.jsonl")
        self._backoff = Backoff()
        self._changed = threading.Condition()
        self._stopping = False
        self._run = ""
        self._run_unknown = False
        self._last_run = ""
        self._attempts_due = True
        self._cured_attempts = self._cured_plans = 0
        # Halved where a batch is refused, down to the one bad step; doubled again behind it.
        self._batch_max = _BATCH_RECORDS_MAX
        self._failing = self._tries = 0
        self._registered_for = -1
        self._sent_at = -_SEND_SECONDS
        self.registered: RunRegistered | None = None
        self.replaced: str | None = None
        self.description: Description | None = None
        self.ledgers = 0
        self.registrations = 0
        self.refused = 0
        self.protected: list[str] | None = None
        self._thread = threading.Thread(target=self._loop, name="gnomon-reporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends at once; what was not sent stays in the spool."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._spool.wake()
        self._connection.cancel()
        self._thread.join(timeout=_REQUEST_SECONDS)

    def wait_for_run(self, timeout: float) -> str:
        """The run's id at the controller, like "run-1"; empty where there is none in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._run or self._stopping, timeout)
            return self._run

    def unknown(self, run: str) -> None:
        """The controller does not know `run`: it is registered again before anything is sent."""
        with self._changed:
            if not run or self._run != run:
                return
            self._run = ""
            self._run_unknown = True
        self._log.warning("%s is unknown to the controller: registering again", run)
        self._spool.wake()

    def doubt(self, run: str) -> None:
        """A connection broke: who answers next may have another ledger."""
        with self._changed:
            if self._run == run:
                self._run = ""
        self._spool.wake()

    def give_up(self, why: str) -> None:
        """The controller said that this trainer has to end. Nothing more is sent."""
        if self.replaced is None:
            self.replaced = why
            self._log.error("another trainer has this run now: %s", why)
            self._on_replaced(why)

    def _wait(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._stopping, seconds)

    def _loop(self) -> None:
        away = False
        while not self._wait(0) and self.replaced is None:
            try:
                if not self._run:
                    self._register()
                if self._attempts_due:
                    self._send_attempts(self._first_spooled_attempt())
                    self._attempts_due = False
                self._send_oldest()
                self._backoff.reset()
                if away:
                    self._log.info("the controller is back; %d reports to send", self._spool.count)
                away = False
            except Exception as error:  # the thread must live as long as the run
                if self._wait(0):
                    return
                self._handle(error, away)
                away = True
                if self._wait(self._backoff.next(asked_pause(error))):
                    return

    def _handle(self, error: Exception, away: bool) -> None:
        self._contact.failed(str(error))
        text = "%s; training goes on, reports wait in the spool"
        if isinstance(error, ApiError) and error.is_replaced:
            self.give_up(str(error))
        elif isinstance(error, ApiError) and error.refuses_token:
            if self._contact.may_log_refusal():
                self._log.warning(text, error)
        elif not self._run and _is_refusal(error) and not _is_unknown_run(error):
            if self._contact.may_log_refusal():
                self._log.error(
                    "the controller refuses this run: %s; it is not supervised, and its reports "
                    "wait in the spool",
                    error,
                )
        elif not isinstance(error, ApiError | ConnectionFailed):
            self._log.exception("reporting failed")
        elif not away:
            self._log.warning(text, error)
        else:
            self._log.debug("%s", error)
        if isinstance(error, ConnectionFailed):
            self.doubt(self._run)

    def _first_spooled_attempt(self) -> int | None:
        """Attempts that are still in the spool have their place there."""
        for record in self._spool.others():
            if record.target == "attempts":
                return from_json(AttemptStart, record.body).attempt
        return None

    def _register(self) -> None:
        self.description = Description.fetch(self._connection)
        standing = self._standing()
        self._registration.last_directive = standing.last_directive
        self._registration.newest_plan_version = max(standing.newest_plan_version, 0)
        message = self.description.known("RunRegistration", to_value(self._registration))
        if "capabilities" in message:
            its = message["capabilities"]
            message["capabilities"] = self.description.known("Capabilities", its)
        target = own(f"/v1/runs?running={time.monotonic() - _STARTED:.3f}")
        answer = self._post_to(target, json.dumps(message))
        registered = from_json(RunRegistered, answer)
        self._contact.succeeded()
        self.registrations += 1
        with self._changed:
            self._run = registered.run
            self.registered = registered
            if self._run != self._last_run or self._run_unknown:
                self._log.info(
                    "%s/%s is %s at %s, mode %s",
                    *(self._registration.name, self._registration.job_id, self._run),
                    *(self._connection.url, registered.mode),
                )
                self._attempts_due = True
                self.ledgers += 1
            self._last_run = self._run
            self._run_unknown = False
            self._changed.notify_all()

    def _send_attempts(self, below: int | None) -> None:
        """What a ledger does not take of them it has otherwise already."""
        for attempt in self._standing().attempts:
            if below is not None and attempt.attempt >= below:
                return
            try:
                self._post("attempts", to_json(attempt))
            except ApiError as error:
                if not _is_refusal(error) or _is_unknown_run(error) or error.is_replaced:
                    raise
                self._log.warning("attempt %d was refused: %s", attempt.attempt, error)

    def _send_oldest(self) -> None:
        self._wait_for_batch()
        records = self._spool.oldest(self._batch_max, _BATCH_BYTES_MAX)
        for note in self._spool.notes:
            self._log.error("%s", note)
        self._spool.notes.clear()
        if not records:
            return
        self._sent_at = time.monotonic()
        if records[0].target == STEPS:
            sent = self._send_steps(records)
            if sent:
                self._spool.acknowledge(records[sent - 1].number)
        elif self._is_unwanted(records[0]) or self._deliver(records[0], records[0].body):
            self._spool.acknowledge(records[0].number)

    def _wait_for_batch(self) -> None:
        """Steps alone wait until some are together: a request costs more than they do."""
        self._spool.wait_for_records(_SEND_SECONDS)
        left = self._sent_at + _SEND_SECONDS - time.monotonic()
        if left > 0 and self._batch_max == _BATCH_RECORDS_MAX:
            self._spool.wait_for_urgent(_URGENT_RECORDS, left)

    def _send_steps(self, records: list[SpoolRecord]) -> int:
        """How many of `records`, from the first on, were steps and are done with."""
        steps: list[SpoolRecord] = []
        for record in records:
            if record.target != STEPS:
                break
            steps.append(record)
        bodies = [record.body for record in steps]
        if self.description is not None and self.description.requires("StepReport", "grad_norm"):
            bodies = [_with_grad_norm(body) for body in bodies]
        body = '{"steps":[' + ",".join(bodies) + "]}"
        try:
            if len(steps) > 1:
                self._post(STEPS, body)
            elif not self._deliver(steps[0], body):
                return 0
            self._batch_max = min(self._batch_max * 2, _BATCH_RECORDS_MAX)
            return len(steps)
        except ApiError as error:
            if len(steps) == 1:
                raise
            if _is_unknown_run(error) or error.is_replaced or error.may_pass:
                self._judge(steps[0], error)
            elif not (self._cured_by_plans(steps, error) or self._cured_by_attempts(steps, error)):
                self._batch_max = len(steps) // 2
            return 0

    def _is_unwanted(self, record: SpoolRecord) -> bool:
        """A notice of a kind that this daemon does not know."""
        if record.target != "notices" or self.description is None:
            return False
        words = self.description.words("TrainerNotice", "kind")
        kind = from_json(TrainerNotice, record.body).kind
        if not words or kind in words:
            return False
        self._log.info("this controller takes no notice %s; dropped", kind)
        return True

    def _deliver(self, record: SpoolRecord, body: str) -> bool:
        """Whether the record is done with; False: it is sent again at once."""
        try:
            self._post(record.target, body)
            return True
        except ApiError as error:
            return self._judge(record, error)

    def _judge(self, record: SpoolRecord, error: ApiError) -> bool:
        """As `_deliver`. Raises `error` where the record is to be sent a little later."""
        if _is_unknown_run(error):
            self.unknown(self._run)
            raise error
        if error.is_replaced or error.may_pass:
            raise error
        no_such_path = error.status == 405 or error.title == "Unknown path"
        if record.target == "notices" and no_such_path:
            self._log.info("this controller takes no %s; dropped", record.target)
            return True
        if self._cured_by_plans([record], error) or self._cured_by_attempts([record], error):
            return False
        if _is_refusal(error):
            self._contact.succeeded()
            self._set_aside(record, error.status, str(error))
            return True
        self._tries = self._tries + 1 if self._failing == record.number else 1
        self._failing = record.number
        if self._tries < SERVER_ERRORS_MAX - 1:
            raise error
        # Only a record that fails between two registrations that succeed is at fault.
        registered_before = self._registered_for == record.number
        self._registered_for = -1
        self._register()
        if not registered_before:
            self._registered_for = record.number
            return False
        self._set_aside(record, error.status, f"{error} (tried {self._tries} times)")
        return True

    def _cured_by_attempts(self, records: list[SpoolRecord], error: ApiError) -> bool:
        """A new ledger does not know the attempt: it gets all up to that one, once a record."""
        record = records[-1]
        unknown = error.status == 409 and error.title == "Unknown attempt"
        gap = error.status == 409 and record.target == "attempts"
        if not (unknown or gap) or self._cured_attempts == record.number:
            return False
        self._cured_attempts = record.number
        self._log.warning("%s: sending the attempts so far again", error)
        if unknown:
            self.ledgers += 1
        attempt = int(json.loads(record.body).get("attempt", 0))
        self._send_attempts(attempt if gap else attempt + 1)
        return True

    def _cured_by_plans(self, records: list[SpoolRecord], error: ApiError) -> bool:
        """A ledger that does not know a plan gets those that there are, once a record."""
        record = records[-1]
        if error.status != 409 or error.title != "Unknown plan":
            return False
        if self._cured_plans == record.number:
            return False
        self._cured_plans = record.number
        self._log.warning("%s: announcing the plans so far again", error)
        self._register()
        for each in records:
            report = json.loads(each.body)
            if report.get("plan_version", 0) < 0:
                self._post("notices", to_json(_bf16_notice(report)))
                break
        return True

    def _set_aside(self, record: SpoolRecord, status: int, why: str) -> None:
        self.refused += 1
        self._log.error("the controller refused a report: %s; it is in %s", why, self._refused.file)
        self._refused.append(record, status, why)

    def _post(self, target: str, body: str) -> None:
        run = self._run
        if not run:
            raise ConnectionFailed("the run has to be registered again")
        answer = self._post_to(own(f"/v1/runs/{run}/{target}"), body)
        self._contact.succeeded()
        if answer and not target.startswith("directives/") and target != "notices":
            self.protected = from_json(ReportAck, answer).protected_checkpoints

    def _post_to(self, target: str, body: str) -> bytes:
        return self._connection.request("POST", target, body, _REQUEST_SECONDS).body


def _with_grad_norm(body: str) -> str:
    """A daemon that needs the gradient norm gets 0 where it was not said."""
    return body if '"grad_norm":' in body else '{"grad_norm":0,' + body[1:]


def _bf16_notice(report: dict[str, Any]) -> TrainerNotice:
    version = int(report["plan_version"])
    text = "no controller: every GEMM in BF16 (sent again, since the ledger did not know it)"
    step = int(report.get("step", report.get("base_step", 0)))
    notice = TrainerNotice(int(report["attempt"]), step, "plan_without_controller", text)
    notice.plan = PrecisionPlan.bf16(version).to_toml()
    notice.plan_version = version
    notice.time = report.get("time")
    return notice


def _is_unknown_run(error: Exception) -> bool:
    return isinstance(error, ApiError) and error.status == 404 and error.title == "Unknown run"


def _is_refusal(error: Exception) -> bool:
    """Sending again cannot help. Only a problem document is gnomond's word."""
    if not isinstance(error, ApiError):
        return False
    return 400 <= error.status < 500 and not error.may_pass and bool(error.title)
