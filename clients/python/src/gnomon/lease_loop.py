"""A verifier's life: ask for a replay, run it, check it, answer, ask again."""

from __future__ import annotations

import enum
import json
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gnomon.connection import Backoff, ClientOptions, Connection, asked_pause
from gnomon.errors import (
    SERVER_ERRORS_MAX,
    ApiError,
    ConfigError,
    ConnectionFailed,
    GnomonError,
)
from gnomon.leases import LeaseClient, LeaseKeeper
from gnomon.model import marked_inexact, own_fingerprint
from gnomon.records import Fingerprint, Lease, LeaseRequest
from gnomon.replay_check import check_result, first_other_batch, message_of
from gnomon.verify import (
    LeaseLost,
    ReplayFailed,
    ReplayResult,
    ReplayTask,
    Unsupported,
    Verifier,
)

_POLL_SECONDS = 30.0


@dataclass
class Abilities:
    """What a verifier can do; an empty list is anything."""

    arms: list[str] = field(default_factory=list)
    checkpoint_formats: list[str] = field(default_factory=list)
    frameworks: list[str] = field(default_factory=list)
    fingerprint: Fingerprint | None = None
    exact_replay: bool = False


class Replayer(Protocol):
    """Where replays are run."""

    def abilities(self) -> Abilities: ...

    def replay(self, task: ReplayTask) -> ReplayResult:
        """Raises Unsupported, LeaseLost, and anything else for a replay that failed."""

    def close(self) -> None: ...


class FunctionReplayer:
    """Runs a verifier's function in the calling thread: nothing can end one that hangs."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def abilities(self) -> Abilities:
        it = self._verifier
        return Abilities(
            list(it.arms),
            list(it.checkpoint_formats),
            list(it.frameworks),
            it.fingerprint() if it.fingerprint is not None else own_fingerprint(),
            it.exact_replay,
        )

    def replay(self, task: ReplayTask) -> ReplayResult:
        return call_verifier(self._verifier, task)

    def close(self) -> None:
        pass


def call_verifier(verifier: Verifier, task: ReplayTask) -> ReplayResult:
    """The checked result. What the function raises becomes ReplayFailed with its place."""
    if verifier.arms and task.arm not in verifier.arms:
        raise Unsupported(f"arm {task.arm}; this verifier does {', '.join(verifier.arms)}")
    try:
        result = verifier.function(task)
    except (Unsupported, LeaseLost, ReplayFailed):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ReplayFailed(
            f"the replay raised {type(error).__name__}: {error} "
            f"({os.path.basename(frame.filename)}:{frame.lineno} in {frame.name})"
        ) from error
    return check_result(task, result)


@dataclass
class LoopOptions:
    """name: unique among all verifiers. labels: for a policy's [verifier] requires."""

    client: ClientOptions
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    once: bool = False
    poll_seconds: float = _POLL_SECONDS


class _Done(enum.Enum):
    """What came of a lease. FAILED: another try may help."""

    COMPLETED = enum.auto()
    FAILED = enum.auto()
    LEFT = enum.auto()


class LeaseLoop:
    """Raises ConfigError as a connection does."""

    def __init__(self, options: LoopOptions, replayer: Replayer, log: logging.Logger) -> None:
        self._options = options
        self._replayer = replayer
        self._log = log
        self._client = LeaseClient(Connection(options.client))
        self._backoff = Backoff()
        self._token_backoff = Backoff(1.0, 30.0)
        # What fails one replay, like a storage that is away, would fail all that wait.
        self._failure_backoff = Backoff(1.0, 30.0)
        self._stopping = threading.Event()
        self._asking = False
        abilities = replayer.abilities()
        self._exact = abilities.exact_replay
        self._fingerprint = self._marked(abilities.fingerprint or own_fingerprint())
        self._request = LeaseRequest(options.name, self._fingerprint)
        self._request.arms = abilities.arms or None
        self._request.checkpoint_formats = abilities.checkpoint_formats or None
        self._request.frameworks = abilities.frameworks or None
        self._request.labels = {"host": os.uname().nodename[:200], **options.labels}

    def stop(self) -> None:
        """From any thread or a signal: the replay at hand is finished and answered first."""
        self._stopping.set()
        if self._asking:
            self._client.connection.cancel()

    def run(self) -> int:
        """Until `stop`, or with `once` until one lease is done. Returns replays completed."""
        completed = 0
        away = False
        while not self._stopping.is_set():
            try:
                self._asking = True
                if self._stopping.is_set():
                    break
                lease = self._client.ask(self._request, self._options.poll_seconds)
            except GnomonError as error:
                if not self._stopping.is_set():
                    self._pause(error, away)
                    away = True
                continue
            finally:
                self._asking = False
            if away:
                self._log.info("the controller is back")
            away = False
            self._backoff.reset()
            self._token_backoff.reset()
            if lease is None:
                continue
            done = self._work(lease)
            completed += done is _Done.COMPLETED
            if self._options.once:
                break
            if done is _Done.COMPLETED:
                self._failure_backoff.reset()
            elif done is _Done.FAILED:
                self._stopping.wait(self._failure_backoff.next())
        return completed

    def _pause(self, error: Exception, away: bool) -> None:
        if isinstance(error, ConnectionFailed):
            self._client.forget_description()
        refused = isinstance(error, ApiError) and error.refuses_token
        backoff = self._token_backoff if refused else self._backoff
        seconds = backoff.next(asked_pause(error))
        if refused or not away:
            self._log.warning("%s; trying again", error)
        self._stopping.wait(seconds)

    def _work(self, lease: Lease) -> _Done:
        task = lease.task
        self._log.info(
            "lease %d: %s window %d, arm %s (%s), %d steps from step %d",
            *(lease.lease, task.run, task.window, task.arm, task.purpose),
            *(task.steps, task.start_step),
        )
        keeper = LeaseKeeper(self._client.connection.another(), lease, self._log)
        begun = time.monotonic()
        try:
            result = self._replayer.replay(ReplayTask.of(task, keeper.check, keeper.progress))
        except LeaseLost:
            self._log.warning("lease %d: abandoned", lease.lease)
            return _Done.LEFT
        except Exception as error:
            return self._fail(lease, error)
        finally:
            keeper.close()
        if keeper.lost:
            self._log.warning("lease %d: abandoned", lease.lease)
            return _Done.LEFT
        if result.replay_seconds is None:  # without it nobody knows what verification costs
            spent = time.monotonic() - begun - (result.eval_seconds or 0.0)
            result.replay_seconds = max(spent, 0.0)
        self._compare_batches(lease, result)
        fingerprint = self._marked(result.fingerprint) if result.fingerprint else self._fingerprint
        message = message_of(result, lease.token, time.time(), fingerprint)
        taken = self._answer(lease, lambda: self._client.complete(lease, message))
        return _Done.COMPLETED if taken else _Done.LEFT

    def _marked(self, fingerprint: Fingerprint) -> Fingerprint:
        return fingerprint if self._exact else marked_inexact(fingerprint, self._options.name)

    def _fail(self, lease: Lease, error: Exception) -> _Done:
        unsupported = isinstance(error, (Unsupported, ConfigError))
        known = isinstance(error, GnomonError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        if unsupported:
            self._log.info("lease %d is not for this verifier: %s", lease.lease, reason)
        else:
            self._log.error("lease %d: %s", lease.lease, reason, exc_info=not known)
        self._answer(lease, lambda: self._client.fail(lease, reason or "failed", unsupported))
        return _Done.LEFT if unsupported else _Done.FAILED

    def _compare_batches(self, lease: Lease, result: ReplayResult) -> None:
        """Says here too what the controller makes of it: that the loader has another order."""
        task = lease.task
        if not any(step.batch_hash for step in result.steps):
            return
        last = task.start_step + task.steps
        target = f"/v1/runs/{task.run}/steps?attempt={task.attempt}&from={task.start_step + 1}"
        try:
            rows = json.loads(self._client.connection.request("GET", f"{target}&to={last}").body)
        except (GnomonError, ValueError) as error:
            return self._log.debug("batch hashes are not compared: %s", error)
        of_run = {row["step"]: row["batch_hash"] for row in rows}
        step, own, its = first_other_batch(result.steps, of_run)
        if step:
            self._log.error(
                "lease %d: the batch of step %d is not the run's (hash %s, the run's %s): the "
                "loader does not replay its order, and the window says nothing of FP8",
                *(lease.lease, step, own, its),
            )

    def _answer(self, lease: Lease, send: Callable[[], None]) -> bool:
        """Whether the controller took it. Tries until it has taken or refused it, or fails at it
        again and again."""
        errors = 0
        deadline = time.monotonic() + lease.ttl_seconds
        while not self._stopping.is_set() or time.monotonic() < deadline:
            try:
                send()
                self._backoff.reset()
                return True
            except ApiError as error:
                if not error.may_pass:
                    errors += 1 if error.status >= 500 else SERVER_ERRORS_MAX
                if errors >= SERVER_ERRORS_MAX:
                    self._log.warning("lease %d: the answer was refused: %s", lease.lease, error)
                    return False
                self._log.warning("%s", error)
                pause = asked_pause(error)
            except ConnectionFailed as error:
                self._log.warning("%s; trying again", error)
                pause = 0.0
            seconds = self._backoff.next(pause)
            if self._stopping.wait(seconds):
                time.sleep(min(seconds, 1.0))
        self._log.error("lease %d: no answer could be given; it is leased again", lease.lease)
        return False
