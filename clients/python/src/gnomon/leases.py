"""Leases: asking for replays, keeping a lease alive, answering under its fencing token."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

from gnomon.connection import Connection
from gnomon.description import Description
from gnomon.errors import ApiError, ConnectionFailed
from gnomon.json_record import from_json, to_value
from gnomon.records import Lease, LeaseFailure, LeaseHeartbeat, LeaseRequest, ReplayResult
from gnomon.reporter import own
from gnomon.verify import LeaseLost

_SLACK_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_REASON_MAX = 16_000


class LeaseClient:
    """One thread's; `cancel` is for others. Raises ApiError and ConnectionFailed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._description: Description | None = None

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def description(self) -> Description:
        if self._description is None:
            self._description = Description.fetch(self._connection)
        return self._description

    def forget_description(self) -> None:
        """Who answers next may be a newer or an older daemon."""
        self._description = None

    def ask(self, request: LeaseRequest, wait_seconds: float) -> Lease | None:
        """Waits for a replay; None where there was none in time. `on_trainer`: of this process."""
        message = self.description.known("LeaseRequest", to_value(request))
        target = f"/v1/leases?wait={wait_seconds:g}s"
        target = own(target) if request.on_trainer else target
        timeout = wait_seconds + _SLACK_SECONDS
        answer = self._connection.request("POST", target, json.dumps(message), timeout)
        if answer.status == 204 or not answer.body:
            return None
        return from_json(Lease, answer.body)

    def complete(self, lease: Lease, result: ReplayResult) -> None:
        value = self.description.known("ReplayResult", to_value(result))
        if self.description.requires("ReplayStep", "grad_norm"):
            for step in value["steps"]:
                step.setdefault("grad_norm", 0.0)
        self._answer(lease, "complete", value)

    def fail(self, lease: Lease, reason: str, unsupported: bool = False) -> None:
        """Gives the replay back. Unsupported: this verifier cannot do it; costs no attempt."""
        failure = LeaseFailure(lease.token, reason[:_REASON_MAX], unsupported=unsupported or None)
        self._answer(lease, "fail", self.description.known("LeaseFailure", to_value(failure)))

    def _answer(self, lease: Lease, what: str, value: dict[str, Any]) -> None:
        target = f"/v1/leases/{lease.lease}/{what}"
        self._connection.request("POST", target, json.dumps(value), _ANSWER_SECONDS)


class LeaseKeeper:
    """Sends a heartbeat each third of a lease's time, on a thread and a connection of its own."""

    def __init__(self, connection: Connection, lease: Lease, log: logging.Logger) -> None:
        self._connection = connection
        self._lease = lease
        self._log = log
        self._steps_done = 0
        self._interval = max(lease.ttl_seconds / 3, 0.02)
        self._stopping = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="gnomon-lease", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> bool:
        """Somebody else has the replay now, or the controller forgot it."""
        return self._lost.is_set()

    def check(self) -> None:
        """Raises LeaseLost."""
        if self.lost:
            raise LeaseLost(f"lease {self._lease.lease} is lost")

    def progress(self, steps_done: int) -> None:
        self._steps_done = steps_done

    def close(self) -> None:
        """Ends the heartbeats."""
        self._stopping.set()
        self._connection.cancel()
        self._thread.join(timeout=_SLACK_SECONDS)
        self._connection.close()

    def _loop(self) -> None:
        pause = self._interval
        while not self._lost.is_set() and not self._stopping.wait(pause):
            pause = max(self._interval, self._beat())

    def _beat(self) -> float:
        """Seconds that the controller asks for before the next one."""
        lease = self._lease
        body = json.dumps(to_value(LeaseHeartbeat(lease.token, steps_done=self._steps_done)))
        target = f"/v1/leases/{lease.lease}/heartbeat"
        try:
            self._connection.request("POST", target, body, max(self._interval, 1.0))
        except ApiError as error:
            if error.status in (404, 409):
                self._log.warning("lease %d is lost: %s", lease.lease, error)
                self._lost.set()
            else:
                self._log.warning("heartbeat: %s", error)
            return min(error.retry_after, 60.0)
        except ConnectionFailed as error:
            # The lease may still be valid when the controller is back; if not, it will say so.
            if not self._stopping.is_set():
                self._log.warning("heartbeat: %s", error)
        return 0.0
