"""The leases of a run that its own trainer replays: a thread waits for one, the loop does it."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from gnomon.connection import Backoff, ClientOptions, asked_pause
from gnomon.errors import GnomonError
from gnomon.leases import LeaseClient, LeaseKeeper
from gnomon.records import Lease, LeaseRequest
from gnomon.replay_check import check_result, message_of
from gnomon.run import Run
from gnomon.torch.ranks import broadcast, is_together, rank
from gnomon.verify import LeaseLost, ReplayResult, ReplayTask, Unsupported

log = logging.getLogger("gnomon")

_POLL_SECONDS = 20.0
_ANSWER_TRIES = 20


class ShadowLeases:
    """Rank 0 asks; all ranks replay. Nothing is asked for before the run is registered."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waiting: queue.Queue[tuple[Lease, LeaseKeeper]] = queue.Queue(1)
        self._stopping = threading.Event()
        self._done = threading.Event()  # the lease at hand is answered: ask for another one
        self._done.set()
        self._client: LeaseClient | None = None
        self._options: ClientOptions | None = None
        lead = run._lead
        if rank() == 0 and lead is not None and not lead._options.offline:
            self._options = lead._options.client
            self._fingerprint = lead._options.registration.fingerprint
            self._client = LeaseClient(self._options)
            threading.Thread(target=self._ask, name="gnomon-shadow", daemon=True).start()

    def serve(self, answer: Callable[[ReplayTask], ReplayResult]) -> None:
        """Has `answer` do the replay that waits, if there is one, and sends what came of it.
        All ranks call it together. What `answer` raises is reported as the replay's failure, and
        training goes on; one of several ranks raises it, since the others are in the replay.
        """
        lease, keeper = None, None
        if not self._waiting.empty():
            lease, keeper = self._waiting.get()
        message = broadcast(lease.task if lease is not None else None)
        if message is None:
            return
        failure: Exception | None = None
        result = None
        try:
            task = ReplayTask.of(message)
            if keeper is not None and not is_together():
                # One of several ranks may not leave a replay that the others are in.
                task = ReplayTask.of(message, keeper.check, keeper.progress)
            result = check_result(task, answer(task))
        except Exception as error:
            failure = error
        if lease is not None and keeper is not None:
            keeper.close()
            if not keeper.lost:
                self._send(lease, result, failure)
            self._done.set()
        if failure is not None and not isinstance(failure, GnomonError) and is_together():
            raise failure

    def close(self) -> None:
        """Asks for nothing more."""
        self._stopping.set()
        self._done.set()
        if self._client is not None:
            self._client.connection.cancel()
        while not self._waiting.empty():
            self._waiting.get()[1].close()

    def _send(self, lease: Lease, result: ReplayResult | None, failure: Exception | None) -> None:
        assert self._options is not None
        client, backoff = LeaseClient(self._options), Backoff()
        for _ in range(_ANSWER_TRIES):
            try:
                if result is not None:
                    its = message_of(result, lease.token, time.time(), self._fingerprint)
                    return client.complete(lease, its)
                unsupported = isinstance(failure, Unsupported)
                if not isinstance(failure, LeaseLost):
                    log.error("lease %d: %s", lease.lease, failure, exc_info=failure)
                    reason = str(failure) or type(failure).__name__
                    client.fail(lease, reason, retryable=False, unsupported=unsupported)
                return
            except GnomonError as error:
                if not getattr(error, "may_pass", True):
                    return log.warning("lease %d: the answer was refused: %s", lease.lease, error)
                time.sleep(backoff.next(asked_pause(error)))

    def _ask(self) -> None:
        """The thread: one lease at a time."""
        assert self._client is not None
        assert self._options is not None
        backoff = Backoff()
        name = f"trainer:{os.uname().nodename}:{os.getpid()}"[:200]
        while not self._stopping.is_set():
            self._done.wait()
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
            if lease is not None and not self._stopping.is_set():
                self._done.clear()
                self._waiting.put((lease, LeaseKeeper(self._options, lease, log)))
