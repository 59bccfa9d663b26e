"""Brings the controller's directives to the training loop: a long poll on a thread of its own.

Delivery is at least once; each number is handed to the loop once, in order. A new ledger's
directives are numbered above those of the one that was lost; one that reuses a number is rejected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from gnomon.connection import Backoff, ClientOptions, Connection, asked_pause
from gnomon.errors import ApiError, ConnectionFailed
from gnomon.json_record import from_json
from gnomon.outbox import Outbox
from gnomon.records import Directive, DirectiveAck, DirectiveList
from gnomon.reporter import Contact, Reporter, Standing, own

_POLL_SECONDS = 30
_SLACK_SECONDS = 10
_RUN_CHECK_SECONDS = 0.2
SENTENCE_MAX = 16_000  # bytes of a reason


def ack_target(number: int) -> str:
    """Where the answer to a directive goes."""
    return f"directives/{number}/ack"


def shortened(text: str, bytes_max: int = SENTENCE_MAX) -> str:
    """A sentence that the controller takes."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return text
    return data[: bytes_max - 4].decode(errors="ignore") + " ..."


def used_number(number: int, last: int) -> str:
    """Why a directive is rejected whose number is not above `last`."""
    return (
        f"number {number} was used before; accepted: numbers above {last}, the last directive "
        "that this trainer has answered"
    )


class DirectiveInbox:
    """Starts its thread at once.

    pending: the number of a directive that waits for a restart of the trainer, and 0.
    on_arrival: called by the thread when there is something to take.
    """

    def __init__(
        self,
        options: ClientOptions,
        reporter: Reporter,
        standing: Callable[[], Standing],
        pending: Callable[[], int],
        outbox: Outbox,
        contact: Contact,
        log: logging.Logger,
        on_arrival: Callable[[], None],
    ) -> None:
        self._connection = Connection(options)
        self._reporter = reporter
        self._standing = standing
        self._pending = pending
        self._outbox = outbox
        self._contact = contact
        self._log = log
        self._on_arrival = on_arrival
        self._backoff = Backoff()
        self._queue: deque[Directive] = deque()
        self._stopping = threading.Event()
        self._last_seen = 0  # the highest number handed to the loop
        self._ledger = 0  # Reporter.ledgers for which that holds
        self._registration = 0  # Reporter.registrations since which all open ones were asked for
        self._thread = threading.Thread(target=self._loop, name="gnomon-directives", daemon=True)
        self._thread.start()

    def pop(self) -> Directive | None:
        """The next directive, oldest first. Its acknowledgement is on its way already."""
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def close(self) -> list[Directive]:
        """Takes in no more, and returns what `take` had still to return."""
        self._stopping.set()
        self._connection.cancel()
        self._thread.join(timeout=_SLACK_SECONDS)
        left = list(self._queue)
        self._queue.clear()
        return left

    def _loop(self) -> None:
        while not self._stopping.is_set() and self._reporter.replaced is None:
            run = self._reporter.wait_for_run(_RUN_CHECK_SECONDS)
            if not run:
                continue
            try:
                self._poll(run)
                self._backoff.reset()
            except Exception as error:  # the thread must live as long as the run
                if self._stopping.is_set():
                    return
                self._handle(error, run)
                if self._stopping.wait(self._backoff.next(asked_pause(error))):
                    return

    def _handle(self, error: Exception, run: str) -> None:
        self._contact.failed(str(error))
        if isinstance(error, ConnectionFailed):
            self._reporter.doubt(run)
            self._log.debug("directives: %s", error)
        elif not isinstance(error, ApiError):
            self._log.exception("directives: polling failed")
        elif error.is_replaced:
            self._reporter.give_up(str(error))
        elif error.status == 404 and error.title == "Unknown run":
            self._reporter.unknown(run)
        elif not error.refuses_token or self._contact.may_log_refusal():
            self._log.warning("directives: %s", error)

    def _poll(self, run: str) -> None:
        self._look_for_new_ledger()
        # Once after each registration all open directives are asked for: a number that was used
        # would not be seen otherwise.
        registration = self._reporter.registrations
        last = self._standing().last_directive
        # Answers that the controller may not have yet.
        on_their_way = self._outbox.targets()
        everything = registration != self._registration
        after = 0 if everything else max(self._last_seen, last)
        target = own(f"/v1/runs/{run}/directives?after={after}&wait={_POLL_SECONDS}s")
        answer = self._connection.request("GET", target, None, _POLL_SECONDS + _SLACK_SECONDS)
        self._contact.succeeded()
        for directive in from_json(DirectiveList, answer.body).directives:
            number = directive.number
            if number <= self._last_seen:
                continue
            if number == self._pending():
                self._last_seen = number
                continue
            if number > last:
                self._accept(directive)
            elif ack_target(number) not in on_their_way:
                self._reject_used(directive, last)
        self._registration = registration

    def _look_for_new_ledger(self) -> None:
        """What a lost ledger's controller wanted and was not done, the new one does not know."""
        ledger = self._reporter.ledgers
        if ledger == self._ledger:
            return
        self._ledger = ledger
        self._last_seen = 0
        while (directive := self.pop()) is not None:
            self._log.warning(
                "directive %d (%s) is given up: the ledger that knew it is gone",
                *(directive.number, directive.kind),
            )

    def _accept(self, directive: Directive) -> None:
        self._log.info("directive %d %s: %s", directive.number, directive.kind, directive.reason)
        self._last_seen = directive.number
        if directive.state == "expired":
            return
        self._answer(directive, "acknowledged", "")
        self._queue.append(directive)
        self._on_arrival()

    def _reject_used(self, directive: Directive, last: int) -> None:
        reason = used_number(directive.number, last)
        self._log.error("directive %d is rejected: %s", directive.number, reason)
        self._answer(directive, "rejected", reason)

    def _answer(self, directive: Directive, state: str, reason: str) -> None:
        ack = DirectiveAck(state, reason=shortened(reason), time=time.time())
        self._outbox.put(ack_target(directive.number), ack)
