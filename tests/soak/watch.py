"""Looks at the daemon from outside: its process, its files, its metrics against its ledger, its log."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import sqlite3
import subprocess
import time

import judge
import judge_ledger
from client import Connector
from judge import LogLine, Sample
from settings import Settings
from soak import Soak

RETENTION_ROUND_SECONDS = 60  # after a round over all tables
METRICS_SECONDS_MAX = 5.0


class Watch:
    def __init__(self, soak: Soak, settings: Settings, connector: Connector, daemon: subprocess.Popen[bytes]) -> None:
        self.soak = soak
        self.settings = settings
        self.client = connector.client("reader", "watch")
        self.daemon = daemon
        self.samples: list[Sample] = []
        self.ledger_bytes = self.wal_bytes = 0
        self.metrics_seconds_max = 0.0
        self.compared = 0

    def start(self) -> None:
        self.soak.start("watch", self.look)

    def sample(self) -> Sample:
        folder = f"/proc/{self.daemon.pid}"
        with open(f"{folder}/status", encoding="utf-8") as file:
            status = dict(line.split(":", 1) for line in file.read().splitlines())
        return Sample(
            share=self.soak.share,
            rss_kib=int(status["VmRSS"].split()[0]),
            descriptors=len(os.listdir(f"{folder}/fd")),
            threads=int(status["Threads"]),
        )

    def look(self) -> None:
        wait = min(max(self.soak.seconds / 100, 1), 5)
        rounds = 0
        while not self.soak.sleep(wait):
            rounds += 1
            try:
                self.samples.append(self.sample())
            except (OSError, KeyError):  # it is gone: main.py says so
                return
            self._sizes()
            self._metrics(with_ledger=rounds % 4 == 0, with_promtool=rounds % 10 == 1)
            if rounds % 12 == 0:
                self.retention(2 * RETENTION_ROUND_SECONDS)

    def _sizes(self) -> None:
        ledger = self.settings.path("ledger.sqlite")
        self.ledger_bytes = max(self.ledger_bytes, ledger.stat().st_size)
        wal = ledger.with_name(ledger.name + "-wal")
        if wal.exists():
            self.wal_bytes = max(self.wal_bytes, wal.stat().st_size)

    def _metrics(self, with_ledger: bool, with_promtool: bool) -> None:
        began = time.time()
        reply = self.client.get("/metrics")
        seconds = time.time() - began
        self.metrics_seconds_max = max(self.metrics_seconds_max, seconds)
        if seconds > METRICS_SECONDS_MAX:
            self.soak.found("metrics", f"/metrics took {seconds:.1f} s")
        if not reply.ok:
            return
        promtool = shutil.which("promtool")
        if with_promtool and promtool:
            check = [promtool, "check", "metrics"]
            done = subprocess.run(check, input=reply.raw, capture_output=True, timeout=60, check=False)
            if done.returncode or done.stdout or done.stderr:
                self.soak.found("metrics", f"promtool: {(done.stdout + done.stderr).decode()[:300]}")
        if with_ledger:
            self.compare(reply.raw.decode())

    def compare(self, before: str) -> None:
        """The metrics before a look at the ledger, and after it."""
        with contextlib.closing(open_ledger(self.settings)) as ledger:
            runs = judge_ledger.runs_on_record(ledger)
        now = time.time()
        after = self.client.get("/metrics").raw.decode()
        first, second = judge_ledger.read_metrics(before), judge_ledger.read_metrics(after)
        keep = self.soak.times.series_keep
        self.soak.found("metrics", *judge_ledger.of_metrics(first, runs, second, now, keep))
        self.compared += len(runs)

    def retention(self, slack_seconds: float) -> None:
        with contextlib.closing(open_ledger(self.settings)) as ledger:
            keep = self.soak.times.retention
            self.soak.found("retention", *judge_ledger.of_retention(ledger, time.time(), keep, slack_seconds))

    def rss_at(self, share: float) -> int:
        """Of the sample nearest to that moment; 0 without samples."""
        nearest = min(self.samples, key=lambda sample: abs(sample.share - share), default=None)
        return nearest.rss_kib if nearest else 0


def open_ledger(settings: Settings) -> sqlite3.Connection:
    return judge_ledger.open_read_only(settings.path("ledger.sqlite"))


LOG_LINE = re.compile(r'ts=(\S+) level=(\S+) msg=(?:"((?:[^"\\]|\\.)*)"|(\S*))')


def read_log(soak: Soak, settings: Settings) -> list[LogLine]:
    """The daemon's log. A line that is none of its format (a message of the C++ library) counts as an error."""
    lines = []
    moment = soak.began
    for text in settings.path("gnomond.log").read_text(errors="replace").splitlines():
        found = LOG_LINE.match(text)
        if "ASan doesn't fully support makecontext" in text:  # of a sanitized build; no finding (docs/testing.md)
            continue
        if not found:
            lines.append(LogLine(moment, "error", f"no line of the log: {text}", explained=False))
            continue
        moment = datetime.datetime.fromisoformat(found.group(1).replace("Z", "+00:00")).timestamp()
        message = found.group(3) if found.group(3) is not None else found.group(4)
        level = found.group(2)
        explained = level in ("error", "critical") and soak.excuses.explains(moment, message)
        lines.append(LogLine(moment, level, message, explained))
    return lines


def judge_log(soak: Soak, settings: Settings) -> None:
    for line in read_log(soak, settings):
        for complaint in judge.of_log_line(line):
            soak.findings.add("log", line.moment - soak.began, complaint)
