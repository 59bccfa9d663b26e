"""The rules over ledger and metrics, each shown a ledger of storage/schema.sql that breaks it and one that does not."""

from __future__ import annotations

import sqlite3
import unittest
from collections.abc import Callable
from pathlib import Path

import judge_ledger
from judge_ledger import RunOnRecord

SCHEMA = Path(__file__).resolve().parents[2] / "storage" / "schema.sql"
VALUES = {"INTEGER": 1, "REAL": 1.0, "TEXT": "x"}


class Ledger:
    """A ledger in memory; columns that a test does not speak of get any value that fits."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.executescript(SCHEMA.read_text())

    def add(self, table: str, **values: object) -> None:
        for _, column, kind, required, default, _ in self.connection.execute(f"PRAGMA table_info({table})"):
            if required and default is None:
                values.setdefault(column, VALUES[kind])
        marks = ", ".join("?" * len(values))
        self.connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))

    def add_run(self, run: int = 1, state: str = "live", finished_at: float | None = None) -> None:
        self.add("runs", id=run, name="demo", job_id=str(run), state=state, finished_at=finished_at)

    def add_replay(self) -> None:
        """One that is done as it should be."""
        self.add("replays", run=1, replay=1, state="done", token=1)
        self.add("leases", id=1, run=1, replay=1, token=1, verifier="v", state="completed")
        self.add("results", run=1, replay=1, token=1, verifier="v")


class NeverTest(unittest.TestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()
        self.ledger.add_run()
        self.ledger.add_replay()

    def tells(self, what: str) -> None:
        self.assertTrue(any(what in line for line in judge_ledger.of_ledger(self.ledger.connection)), what)

    def test_nothing_of_what_is_good(self) -> None:
        self.assertEqual(judge_ledger.of_ledger(self.ledger.connection), [])

    def test_leases(self) -> None:
        self.ledger.add("leases", id=2, run=1, replay=1, token=1, verifier="w", state="completed", granted_at=2.0)
        self.tells("one token")
        self.tells("without gaps")
        self.tells("held or completed")

    def test_results(self) -> None:
        self.ledger.add("results", run=1, replay=2, token=1, verifier="v")
        self.tells("no completed lease")
        self.ledger.add("replays", run=1, replay=3, state="done")
        self.tells("done without a result")

    def test_what_the_core_heard_twice(self) -> None:
        for seq in (1, 2):
            self.ledger.add("events", run=1, seq=seq, type="replay_finished", body='{"replay": 1}')
            self.ledger.add("events", run=1, seq=seq + 2, type="directive_changed", body='{"number": 1}')
        self.tells("a replay's end twice")
        self.tells("a directive's end twice")

    def test_events_without_gaps(self) -> None:
        self.ledger.add("events", run=1, seq=1, type="attempt_started", body="{}")
        self.ledger.add("steps", run=1, attempt=1, step=1, seq=2)
        self.assertEqual(judge_ledger.of_ledger(self.ledger.connection), [])
        self.ledger.add("steps", run=1, attempt=1, step=2, seq=4)
        self.tells("an event is missing")

    def test_directives(self) -> None:
        self.ledger.add("directives", run=1, number=2, state="pending")
        self.tells("without gaps")
        self.ledger.connection.execute("UPDATE runs SET state = 'failed'")
        self.tells("under way")

    def test_orders_without_end(self) -> None:
        for number in range(1, 100):
            self.ledger.add("directives", run=1, number=number, state="applied", issued_at=60.0 + number / 10)
            self.ledger.add("replays", run=1, replay=number + 1, window=7, state="queued")
        self.tells("replays of one window")
        self.tells("directives within a minute")

    def test_windows(self) -> None:
        for window in (1, 2):
            self.ledger.add("windows", run=1, window=window, kind="shadow", attempt=1, start_step=10, steps=5)
        self.tells("begin at one step")


class RetentionTest(unittest.TestCase):
    def overdue(self, ledger: Ledger) -> list[str]:
        return judge_ledger.of_retention(ledger.connection, 1000, keep_seconds=100, slack_seconds=50)

    def test_old_rows_and_those_that_stay(self) -> None:
        ledger = Ledger()
        ledger.add_run(1, "failed", finished_at=900)
        ledger.add_run(2, "live")
        old_of: dict[str, Callable[[int], dict[str, object]]] = {
            "stream": lambda n: {"id": n, "time": 800.0},
            "notices": lambda n: {"run": 1, "notice": n, "step": n, "reported_at": 800.0},
            "device_health": lambda n: {"run": 1, "sample": n, "reported_at": 800.0},
            "statistics_steps": lambda n: {"run": 1, "attempt": 1, "step": n, "reported_at": 800.0},
            "events": lambda n: {"run": 1, "seq": n, "body": "{}"},
            "steps": lambda n: {"run": 1, "attempt": 1, "step": n},
            "replay_steps": lambda n: {"run": 1, "replay": 1, "step": n},
        }
        newest_stays = {table: row for table, row in old_of.items() if table not in ("events", "replay_steps")}
        for table, row in newest_stays.items():
            ledger.add(table, **row(1))
        self.assertEqual(self.overdue(ledger), [])
        for table, row in old_of.items():
            ledger.add(table, **row(2))
        ledger.connection.execute("UPDATE notices SET reported_at = 960 WHERE notice = 2")
        self.assertEqual(len(self.overdue(ledger)), 3)  # the older one may go only since there is a newer one
        ledger.connection.execute("UPDATE notices SET reported_at = 800")
        self.assertEqual(len(self.overdue(ledger)), 4)  # the run has ended, but not long enough ago
        ledger.connection.execute("UPDATE runs SET finished_at = 800 WHERE id = 1")
        self.assertEqual(len(self.overdue(ledger)), 7)
        ledger.connection.execute("UPDATE runs SET state = 'live'")
        self.assertEqual(len(self.overdue(ledger)), 4)


class MetricsTest(unittest.TestCase):
    TEXT = """# TYPE gnomon_run_decisions_total counter
gnomon_config_last_reload_successful 1
gnomon_run_decisions_total{run="demo/1",kind="alarm"} 3
gnomon_run_directives_total{run="demo/1",kind="pause"} 1
gnomon_run_windows_total{run="demo/1",outcome="quiet"} 5
gnomon_run_attempt{run="demo/1"} 2
gnomon_run_step{run="demo/1"} 40
gnomon_run_steps_total{run="demo/1"} 55
gnomon_run_paused{run="demo/1"} 1
"""

    def record(self, **more: object) -> RunOnRecord:
        record = RunOnRecord("live", None, {"alarm": 3}, {"pause": 1}, {"quiet": 5}, 2, 40, 55, True)
        for name, value in more.items():
            setattr(record, name, value)
        return record

    def complaints(self, record: RunOnRecord, run: str = "demo/1") -> int:
        series = judge_ledger.read_metrics(self.TEXT)
        return len(judge_ledger.of_metrics(series, {run: record}, series, now=1000, series_keep_seconds=45))

    def test_what_agrees(self) -> None:
        self.assertEqual(self.complaints(self.record()), 0)
        series = judge_ledger.read_metrics(self.TEXT)
        self.assertEqual(judge_ledger.value_of(series, "gnomon_config_last_reload_successful"), 1)

    def test_each_number(self) -> None:
        changes: tuple[dict[str, object], ...] = (
            {"decisions": {"alarm": 4}},
            {"decisions": {"alarm": 3, "action": 1}},
            {"decisions": {}},
            {"directives": {"pause": 2}},
            {"windows": {"quiet": 4}},
            {"attempt": 3},
            {"step": 41},
            {"steps": 54},
            {"paused": False},
        )
        for change in changes:
            self.assertEqual(self.complaints(self.record(**change)), 1, change)

    def test_series_of_live_and_ended_runs(self) -> None:
        self.assertEqual(self.complaints(self.record(), run="other/1"), 1)
        self.assertEqual(self.complaints(self.record(state="failed", finished_at=980.0)), 0)
        self.assertEqual(self.complaints(self.record(state="failed", finished_at=900.0)), 1)
        self.assertEqual(self.complaints(self.record(state="failed", finished_at=900.0), run="other/1"), 0)

    def test_totals_beyond_the_saved_state(self) -> None:
        ledger = Ledger()
        ledger.add_run()
        ledger.add("decision_state", run=1, seq=2, body='{"paused": true}')
        ledger.add("step_totals", run=1, steps=7)
        ledger.add("steps", run=1, attempt=1, step=8, seq=3)
        ledger.add("steps", run=1, attempt=1, step=7, seq=2)
        record = judge_ledger.runs_on_record(ledger.connection)["demo/1"]
        self.assertEqual((record.steps, record.step, record.paused), (8, 8, True))


if __name__ == "__main__":
    unittest.main()
