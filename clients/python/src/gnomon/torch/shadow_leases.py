"""The leases of a run that its own trainer replays: a thread waits for one, the loop does it."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from gnomon.connection import Backoff, Connection, asked_pause
from gnomon.errors import SERVER_ERRORS_MAX, ApiError, ConfigError, GnomonError
from gnomon.leases import LeaseClient, LeaseKeeper
from gnomon.records import Lease, LeaseRequest
from gnomon.replay_check import check_result, message_of
from gnomon.run import Run
from gnomon.torch.ranks import broadcast, is_together, rank
from gnomon.verify import LeaseLost, ReplayResult, ReplayTask, Unsupported

log = logging.getLogger("gnomon")

_POLL_SECONDS = 20.0
_LAST_SECONDS = 5.0


class ShadowLeases:
    """Rank 0 asks; all ranks replay. Nothing is asked for before the run is registered."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: queue.Queue[tuple[Lease, LeaseKeeper]] = queue.Queue(1)
        self._answers: queue.Queue[ReplayResult | Exception | None] = queue.Queue()
        self._stopping = threading.Event()
        self._client: LeaseClient | None = None
        lead = run._lead
        if rank() == 0 and lead is not None and not lead._options.offline:
            self._fingerprint = lead._options.registration.fingerprint
            self._client = LeaseClient(Connection(lead._options.client))
            self._thread = threading.Thread(target=self._work, name="gnomon-shadow", daemon=True)
            self._thread.start()

    def serve(self, answer: Callable[[ReplayTask], ReplayResult]) -> None:
        """Has `answer` do the replay that waits, if there is one; a thread sends what came of it.
        All ranks call it together. What `answer` raises is reported as the replay's failure, and
        training goes on; one of several ranks raises it, since the others are in the replay.
        """
        lease, keeper = None, None
        if not self._waiting.empty():
            lease, keeper = self._waiting.get()
        message = broadcast(lease.task if lease is not None else None)
        if message is None:
            return
        outcome: ReplayResult | Exception
        try:
            task = ReplayTask.of(message)
            if keeper is not None and not is_together():
                # One of several ranks may not leave a replay that the others are in.
                task = ReplayTask.of(message, keeper.check, keeper.progress)
            outcome = check_result(task, answer(task))
        except Exception as error:
            outcome = error
        if lease is not None:
            self._answers.put(outcome)
        own = isinstance(outcome, GnomonError)
        if is_together() and isinstance(outcome, Exception) and not own:
            raise outcome

    def close(self) -> None:
        """Asks for nothing more. An answer that is not sent yet has one try."""
        self._stopping.set()
        self._answers.put(None)
        if self._client is not None:
            self._client.connection.cancel()
            self._thread.join(_LAST_SECONDS)

    def _work(self) -> None:
        """The thread: one lease at a time."""
        assert self._client is not None
        backoff = Backoff()
        name = f"trainer:{os.uname().nodename}:{os.getpid()}"[:200]
        while not self._stopping.is_set():
            run = self._run.id
            if run is None:
                self._stopping.wait(0.2)
                continue
            request = LeaseRequest(name, self._fingerprint, on_trainer=True, run=run)
            try:
                lease = self._client.ask(request, _POLL_SECONDS)
            except GnomonError as error:
                if not self._stopping.is_set():
                    log.debug("no lease: %s", error)
                    self._stopping.wait(backoff.next(asked_pause(error)))
                continue
            backoff.reset()
            if lease is None:
                continue
            keeper = LeaseKeeper(self._client.connection.another(), lease, log)
            self._waiting.put((lease, keeper))
            outcome = self._answers.get()
            if outcome is not None and not keeper.lost:
                self._send(lease, keeper, outcome)
            keeper.close()

    def _send(self, lease: Lease, keeper: LeaseKeeper, outcome: ReplayResult | Exception) -> None:
        """Tries for as long as the lease is held. When the run ends, once."""
        if isinstance(outcome, LeaseLost):
            return
        if isinstance(outcome, Exception):
            log.error("lease %d: %s", lease.lease, outcome, exc_info=outcome)
        assert self._client is not None
        client = LeaseClient(self._client.connection.another())  # `close` cancels the other one
        backoff, errors = Backoff(), 0
        while not keeper.lost:
            try:
                if isinstance(outcome, ReplayResult):
                    its = message_of(outcome, lease.token, time.time(), self._fingerprint)
                    return client.complete(lease, its)
                unsupported = isinstance(outcome, (Unsupported, ConfigError))
                return client.fail(lease, str(outcome) or type(outcome).__name__, unsupported)
            except GnomonError as error:
                if isinstance(error, ApiError) and not error.may_pass:
                    errors += 1 if error.status >= 500 else SERVER_ERRORS_MAX
                if errors >= SERVER_ERRORS_MAX:
                    return log.warning("lease %d: the answer was refused: %s", lease.lease, error)
                log.debug("lease %d: %s", lease.lease, error)
                if self._stopping.wait(backoff.next(asked_pause(error))):
                    return
