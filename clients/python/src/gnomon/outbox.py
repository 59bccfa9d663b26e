"""What the training loop reports goes through here into the spool, on a thread of its own.

The loop appends to a queue in memory and goes on. Once a second the thread turns what is there into
JSON, reading tensors and hashing batches, writes it to the spool and syncs. When the spool or its
disk is full, this decides what is dropped and what waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from gnomon.json_record import to_json
from gnomon.records import TrainerNotice
from gnomon.spool import STEPS, Spool

# Steps leave this share of the spool to everything else, and more before a gap is closed, so that
# a spool that is emptied slowly does not alternate between the two.
_RESERVE_SHARE = 4
_ROOM_SHARE = 8
_KEPT_MAX = 10_000
QUEUE_MAX = 100_000
_DRAINED_AT_ONCE = 2_000
_INTERVAL_SECONDS = 1.0
_SYNC_SECONDS = 1.0


class Report(NamedTuple):
    """A record for the spool; `attempt` and `step` are those of a step report."""

    target: str
    body: str
    attempt: int = 0
    step: int = 0


class _Gap:
    """Consecutive steps of one attempt whose reports were dropped."""

    def __init__(self, attempt: int, step: int) -> None:
        self.attempt = attempt
        self.first = self.last = step


class Outbox:
    """Thread-safe. Reports keep their order.

    encode: makes a report of what the loop has put, or None where it cannot be one.
    waits_when_full: steps that find no room are kept, and `blocked` says so; else they are dropped
    and a notice `reports_dropped` follows.
    on_tick: called by the thread after each look at the queue.
    """

    def __init__(
        self,
        spool: Spool,
        encode: Callable[[Any], Report | None],
        log: logging.Logger,
        waits_when_full: bool = False,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._spool = spool
        self._encode = encode
        self._log = log
        self._on_tick = on_tick
        self._waits = waits_when_full
        self._reserve = 0 if waits_when_full else spool.bytes_max // _RESERVE_SHARE
        self.queue: deque[Any] = deque()  # the loop appends steps here itself, up to QUEUE_MAX
        self._draining = threading.Lock()
        self._kept: deque[Report] = deque()
        self._gaps: deque[_Gap] = deque()
        self._overflow: deque[_Gap] = deque()
        self.steps_dropped = 0
        self._wake = threading.Event()
        self._stopping = False
        self._synced_at = time.monotonic()
        self._complained_at = -60.0
        self._thread = threading.Thread(target=self._run, name="gnomon-outbox", daemon=True)
        self._thread.start()

    @property
    def blocked(self) -> bool:
        """Whether the loop has to wait for room: only with `waits_when_full`."""
        return self._waits and (len(self._kept) > 0 or len(self.queue) >= QUEUE_MAX)

    def targets(self) -> set[str]:
        """Targets of all reports that are not delivered, but for steps."""
        with self._draining:
            waiting = [it for it in (*self.queue, *self._kept) if isinstance(it, Report)]
            return {it.target for it in waiting} | {it.target for it in self._spool.others()}

    def overflow(self, step: Any) -> None:
        """A step that the queue has no room for, since the disk hangs: it is dropped."""
        _add_to(self._overflow, step.attempt, step.step)
        self._wake.set()

    def put(self, target: str, record: Any) -> None:
        """Queues any other report."""
        self.queue.append(Report(target, to_json(record)))
        self._wake.set()

    def flush(self) -> bool:
        """Writes what is queued to the spool. Whether all of it found room."""
        while self.queue:
            self._drain()
        with self._draining:
            return self._store_kept() and self._report_gaps(0)

    def close(self) -> None:
        """Writes what is queued and ends the thread."""
        self._stopping = True
        self._wake.set()
        self._thread.join(timeout=5)
        self.flush()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_INTERVAL_SECONDS)
            self._wake.clear()
            try:
                while self.queue:
                    self._drain()
                with self._draining:
                    if self._store_kept():
                        self._report_gaps(self._reserve + self._spool.bytes_max // _ROOM_SHARE)
                self._sync_if_due()
                self._on_tick()
            except Exception as error:  # the thread must live as long as the run
                self._complain(f"reports wait: {error!r}")

    def _sync_if_due(self) -> None:
        if time.monotonic() - self._synced_at >= _SYNC_SECONDS:
            self._synced_at = time.monotonic()
            self._spool.sync()

    def _drain(self) -> None:
        with self._draining:
            reports: list[Report] = []
            while self.queue and len(reports) < _DRAINED_AT_ONCE:
                item = self.queue.popleft()
                report = item if isinstance(item, Report) else self._encoded(item)
                if report is not None:
                    reports.append(report)
            while self._overflow:
                gap = self._overflow.popleft()
                self.steps_dropped += gap.last - gap.first + 1
                self._gaps.append(gap)
            self._store(reports)

    def _encoded(self, step: Any) -> Report | None:
        try:
            return self._encode(step)
        except Exception as error:  # values are the user's
            self._log.error("step %d is not reported: %s", step.step, error)
            self._drop(step.attempt, step.step)
            return None

    def _store(self, reports: list[Report]) -> None:
        begin = 0
        while begin < len(reports):
            are_steps = reports[begin].target == STEPS
            end = begin
            while end < len(reports) and (reports[end].target == STEPS) == are_steps:
                end += 1
            if are_steps and not self._waits:
                self._store_steps(reports[begin:end])
            else:
                self._kept.extend(reports[begin:end])
                self._store_kept()
                self._bound_kept()
            begin = end

    def _store_steps(self, reports: list[Report]) -> None:
        room = self._reserve + self._spool.bytes_max // _ROOM_SHARE
        written = 0
        if self._store_kept() and self._report_gaps(room):
            written = self._append(reports, self._reserve)
        for report in reports[written:]:
            self._drop(report.attempt, report.step)

    def _store_kept(self) -> bool:
        """Whether nothing is kept any more."""
        while self._kept:
            part = [self._kept[i] for i in range(min(len(self._kept), 256))]
            written = self._append(part, 0)
            for _ in range(written):
                self._kept.popleft()
            if written < len(part):
                return False
        return True

    def _bound_kept(self) -> None:
        while len(self._kept) > _KEPT_MAX and not self._waits:
            lost = self._kept.popleft()
            self._complain(f"there is no room for a report; it is dropped: {lost.body[:200]}")

    def _append(self, reports: list[Report], kept_free: int) -> int:
        try:
            return self._spool.append_many([(it.target, it.body) for it in reports], kept_free)
        except OSError as error:
            self._complain(f"the spool cannot be written: {error}")
            return 0

    def _drop(self, attempt: int, step: int) -> None:
        self.steps_dropped += 1
        if _add_to(self._gaps, attempt, step):
            self._complain(
                f"the spool in {self._spool.directory} is full ({self._spool.size_bytes} of "
                f"{self._spool.bytes_max} bytes): step reports are dropped from step {step} on "
                "until there is room; training goes on"
            )

    def _report_gaps(self, kept_free: int) -> bool:
        """Whether there is no gap left to report."""
        while self._gaps:
            gap = self._gaps[0]
            text = (
                f"the reports of steps {gap.first} to {gap.last} of attempt {gap.attempt} were "
                "dropped: there was no room for them, or they could not be read"
            )
            notice = TrainerNotice(gap.attempt, gap.last, "reports_dropped", text)
            notice.time = time.time()
            if self._append([Report("notices", to_json(notice))], kept_free) == 0:
                return False
            self._log.warning("%s", text)
            self._gaps.popleft()
        return True

    def _complain(self, text: str) -> None:
        """At most once in ten seconds."""
        if time.monotonic() - self._complained_at >= 10:
            self._complained_at = time.monotonic()
            self._log.error("%s", text)


def _add_to(gaps: deque[_Gap], attempt: int, step: int) -> bool:
    """Whether a new gap begins."""
    if gaps and gaps[-1].attempt == attempt and gaps[-1].last + 1 == step:
        gaps[-1].last = step
        return False
    gaps.append(_Gap(attempt, step))
    return True
