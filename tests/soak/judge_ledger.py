"""The verdict over the ledger: what must never stand there, what retention has taken, and whether metrics agree."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPLAYS_OF_A_WINDOW_MAX = 48  # attribution has at most 12 and some 20 more of all other kinds were seen
DIRECTIVES_A_MINUTE_MAX = 40

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)


# Each row of these queries is a violation. What tests/robustness says of each run's leases, results and directives.
NEVER = {
    "two leases of a replay have one token": "SELECT run, replay FROM leases GROUP BY run, replay, token "
    "HAVING count(*) > 1",
    "the leases of a replay are not numbered without gaps": "SELECT run, replay FROM replays p WHERE token <> "
    "(SELECT count(*) FROM leases l WHERE l.run = p.run AND l.replay = p.replay AND l.token BETWEEN 1 AND p.token)",
    "two leases of a replay are held or completed": "SELECT run, replay FROM leases WHERE state IN "
    "('leased', 'completed') GROUP BY run, replay HAVING count(*) > 1",
    "a result is of no completed lease": "SELECT r.run, r.replay FROM results r WHERE NOT EXISTS (SELECT 1 FROM "
    "leases l WHERE l.run = r.run AND l.replay = r.replay AND l.token = r.token AND l.state = 'completed' AND "
    "l.verifier = r.verifier)",
    "a replay is done without a result, or the other way round": "SELECT run, replay FROM replays p WHERE "
    "(state = 'done') <> EXISTS (SELECT 1 FROM results r WHERE r.run = p.run AND r.replay = p.replay)",
    "the core heard of a replay's end twice": "SELECT run, json_extract(body, '$.replay') FROM events WHERE type IN "
    "('replay_finished', 'replay_failed') GROUP BY 1, 2 HAVING count(*) > 1",
    "the core heard of a directive's end twice": "SELECT run, json_extract(body, '$.number') FROM events WHERE "
    "type = 'directive_changed' GROUP BY 1, 2 HAVING count(*) > 1",
    "directives are not numbered without gaps": "SELECT run, max(number) FROM directives GROUP BY run HAVING "
    "count(*) <> max(number)",
    "an ended run has a directive that is under way": "SELECT d.run, d.number FROM directives d JOIN runs r ON "
    "r.id = d.run WHERE r.state <> 'live' AND d.state NOT IN ('applied', 'expired', 'rejected')",
    "two windows of an attempt begin at one step and are shadows": "SELECT run, start_step FROM windows WHERE "
    "kind = 'shadow' GROUP BY run, attempt, start_step, steps HAVING count(*) > 1",
    "an event is missing": "SELECT e.run, max(e.seq) FROM (SELECT run, seq FROM events UNION ALL SELECT run, seq "
    "FROM steps WHERE seq IS NOT NULL) e JOIN runs r ON r.id = e.run WHERE r.state = 'live' GROUP BY e.run "
    "HAVING count(*) <> max(e.seq)",
    f"more than {REPLAYS_OF_A_WINDOW_MAX} replays of one window": "SELECT run, window, count(*) FROM replays GROUP "
    f"BY run, window HAVING count(*) > {REPLAYS_OF_A_WINDOW_MAX}",
    f"more than {DIRECTIVES_A_MINUTE_MAX} directives within a minute": "SELECT run, cast(issued_at / 60 AS INTEGER), "
    f"count(*) FROM directives GROUP BY 1, 2 HAVING count(*) > {DIRECTIVES_A_MINUTE_MAX}",
}


def of_ledger(ledger: sqlite3.Connection) -> list[str]:
    complaints = []
    for what, query in NEVER.items():
        rows = ledger.execute(query).fetchmany(3)
        complaints += [f"{what}: run and number {', '.join(str(value) for value in row)}" for row in rows]
    return complaints


def _followed(table: str, order: str) -> str:
    """Old rows, of each run, that have had a newer one for a while: the newest of a run stays for ever."""
    return (
        f"SELECT count(*) FROM (SELECT reported_at, lead(reported_at) OVER (PARTITION BY run ORDER BY {order}) AS next "
        f"FROM {table}) WHERE reported_at < :overdue AND next < :seen"
    )


# Rows that retention should have taken: those that were older than the limit, and might go, at the time `:seen`, before
# which their time was `:overdue`.
OVERDUE = {
    "stream": "SELECT count(*) FROM stream WHERE time < :overdue AND id < (SELECT max(id) FROM stream)",
    "notices": _followed("notices", "notice"),
    "device_health": _followed("device_health", "sample"),
    "statistics": _followed("statistics_steps", "attempt, step"),
    "events": "SELECT count(*) FROM events WHERE run IN (SELECT id FROM runs WHERE state <> 'live' AND "
    "finished_at < :overdue)",
    "steps": "SELECT count(*) - count(DISTINCT run) FROM steps WHERE run IN (SELECT id FROM runs WHERE state <> "
    "'live' AND finished_at < :overdue)",
    "replay_steps": "SELECT count(*) FROM replay_steps WHERE run IN (SELECT id FROM runs WHERE state <> 'live' AND "
    "finished_at < :overdue)",
}


def of_retention(ledger: sqlite3.Connection, now: float, keep_seconds: float, slack_seconds: float) -> list[str]:
    complaints = []
    times = {"seen": now - slack_seconds, "overdue": now - slack_seconds - keep_seconds}
    for table, query in OVERDUE.items():
        overdue = ledger.execute(query, times).fetchone()[0]
        if overdue:
            complaints.append(f"{overdue} rows of {table} are older than {keep_seconds:.0f} s and are still there")
    return complaints


@dataclass
class RunOnRecord:
    """What metrics of a run are compared with."""

    state: str
    finished_at: float | None = None
    decisions: dict[str, int] = field(default_factory=dict)
    directives: dict[str, int] = field(default_factory=dict)
    windows: dict[str, int] = field(default_factory=dict)
    attempt: int | None = None
    step: int | None = None  # the newest of the newest attempt
    steps: int | None = None  # all that were ever reported, also those that retention took
    paused: bool | None = None


# Sums go on behind the event of the saved state, as tests/robustness/check_reports.cc has it.
STEPS_EVER = """WITH wanted(id) AS (VALUES (?)) SELECT
  (SELECT total(steps) FROM step_totals WHERE run = id) +
  (SELECT count(*) FROM steps WHERE run = id AND
    seq > (SELECT seq FROM decision_state WHERE run = id)) +
  (SELECT count(*) FROM events WHERE run = id AND type = 'step_reported' AND
    seq > (SELECT seq FROM decision_state WHERE run = id)) FROM wanted"""


def runs_on_record(ledger: sqlite3.Connection) -> dict[str, RunOnRecord]:
    """All runs by NAME/JOB_ID, at one moment."""
    ledger.execute("BEGIN")
    runs = {}
    for run, name, job, state, finished in ledger.execute("SELECT id, name, job_id, state, finished_at FROM runs"):

        def counts(query: str, run: int = run) -> dict[str, int]:
            return dict(ledger.execute(query, (run,)).fetchall())

        def value(query: str, run: int = run) -> Any:
            return ledger.execute(query, (run,)).fetchone()[0]

        body = value("SELECT (SELECT body FROM decision_state WHERE run = ?)")
        runs[f"{name}/{job}"] = RunOnRecord(
            state=state,
            finished_at=finished,
            decisions=counts("SELECT kind, count(*) FROM decisions WHERE run = ? GROUP BY 1"),
            directives=counts("SELECT kind, count(*) FROM directives WHERE run = ? GROUP BY 1"),
            windows=counts("SELECT state, count(*) FROM windows WHERE run = ? AND state <> 'open' GROUP BY 1"),
            attempt=value("SELECT max(attempt) FROM attempts WHERE run = ?"),
            step=value("SELECT (SELECT step FROM steps WHERE run = ? ORDER BY attempt DESC, step DESC LIMIT 1)"),
            steps=int(value(STEPS_EVER)),
            paused=json.loads(body).get("paused") if body else None,
        )
    ledger.execute("COMMIT")
    return runs


def read_metrics(text: str) -> Series:
    series: Series = {}
    for line in text.splitlines():
        found = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
        if found:
            labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found.group(2) or ""))
            series[(found.group(1), labels)] = float(found.group(3))
    return series


def value_of(series: Series, name: str) -> float | None:
    """A series without labels."""
    return series.get((name, frozenset()))


COUNTED = (
    ("gnomon_run_decisions_total", "kind", "decisions"),
    ("gnomon_run_directives_total", "kind", "directives"),
    ("gnomon_run_windows_total", "outcome", "windows"),
)


def of_metrics(
    before: Series, runs: Mapping[str, RunOnRecord], after: Series, now: float, series_keep_seconds: float
) -> list[str]:
    """Counters before the look at the ledger are at most, and after it at least, what the ledger has."""
    complaints = []
    seen_before = {dict(labels).get("run") for _, labels in before}
    seen_after = {dict(labels).get("run") for _, labels in after}
    for run, record in runs.items():
        if record.state == "live" and run not in seen_after:
            complaints.append(f"{run} is live and has no series")
        since_end = now - (record.finished_at or now)
        if record.state != "live" and since_end > series_keep_seconds + 10 and run in seen_before:
            complaints.append(f"{run} ended {since_end:.0f} s ago and still has series")
        if record.state == "live" and run in seen_before and run in seen_after:
            complaints += _of_run(run, record, before, after)
    return complaints


def _of_run(run: str, record: RunOnRecord, before: Series, after: Series) -> list[str]:
    complaints = []
    for name, label, what in COUNTED:
        counts: dict[str, int] = getattr(record, what)
        kinds = set(counts) | {dict(key)[label] for metric, key in before if metric == name and ("run", run) in key}
        for kind in sorted(kinds):
            key = (name, frozenset({("run", run), (label, kind)}))
            low, high = before.get(key, 0), after.get(key, 0)
            if not low <= counts.get(kind, 0) <= high:
                complaints.append(
                    f"{run}: {name} of {kind} is {low:g}, then {high:g}, and the ledger has {counts.get(kind, 0)}"
                )
    own = frozenset({("run", run)})
    for name, recorded in (("gnomon_run_attempt", record.attempt), ("gnomon_run_steps_total", record.steps)):
        low, high = before.get((name, own), 0), after.get((name, own), 0)
        if recorded is not None and not low <= recorded <= high:
            complaints.append(f"{run}: {name} is {low:g}, then {high:g}, and the ledger has {recorded}")
    step = ("gnomon_run_step", own)  # a rollback takes it back, so it may lie beyond both only when it moved
    if record.step is not None and before.get(step) == after.get(step) != record.step:
        if before.get(("gnomon_run_attempt", own)) == after.get(("gnomon_run_attempt", own)):
            complaints.append(f"{run}: gnomon_run_step is {after.get(step)}, the ledger has {record.step}")
    paused = ("gnomon_run_paused", own)
    agree = {bool(before.get(paused)), bool(after.get(paused))}
    if record.paused is not None and record.paused not in agree:
        complaints.append(f"{run}: gnomon_run_paused is {after.get(paused)}, the core's state says {record.paused}")
    return complaints
