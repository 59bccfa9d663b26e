"""Each rule of the verdict is shown something that breaks it, and something that does not."""

from __future__ import annotations

import time
import unittest
from typing import Any

import judge
import judge_messages
from contract import Contract
from excuses import Excuses
from findings import Findings
from judge import Access, Answer, Backups, Command, End, Follower, LogLine, Orders, Reload, Restart, Rotation, Sample
from judge_messages import Arrival
from operators import CHANGES, OWN, changed_policy
from receivers import is_genuine
from settings import POLICY


class AnswerTest(unittest.TestCase):
    def answer(self, status: int, **more: Any) -> list[str]:
        return judge.of_answer(Answer("a trainer", "GET /v1/runs", status, (200, 409), **more))

    def test_only_what_was_expected(self) -> None:
        self.assertEqual(self.answer(409), [])
        for status in (400, 403, 404, 429, 500, 503):
            self.assertEqual(len(self.answer(status)), 1, status)

    def test_what_breaks_the_document_is_told_of_expected_answers_too(self) -> None:
        self.assertEqual(len(self.answer(200, schema=("at id: is no integer",))), 1)

    def test_in_time(self) -> None:
        self.assertEqual(self.answer(200, seconds=3), [])
        self.assertEqual(len(self.answer(200, seconds=30)), 1)


class ContractTest(unittest.TestCase):
    document = {
        "components": {
            "schemas": {"Run": {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}},
            "responses": {"Gone": {"content": {"application/problem+json": {"schema": {"type": "object"}}}}},
        },
        "paths": {
            "/v1/runs/{run}": {
                "get": {
                    "responses": {
                        "200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Run"}}}},
                        "404": {"$ref": "#/components/responses/Gone"},
                    }
                },
                "delete": {"responses": {"204": {"description": "It is gone."}}},
            }
        },
    }

    def complaints(self, status: int, kind: str, body: bytes, method: str = "GET", path: str = "/v1/runs/7") -> int:
        return len(Contract(self.document).complaints(method, path, status, kind, body))

    def test_statuses_types_and_bodies(self) -> None:
        self.assertEqual(self.complaints(200, "application/json", b'{"id": 7}'), 0)
        self.assertEqual(self.complaints(200, "application/json", b'{"id": "7"}'), 1)
        self.assertEqual(self.complaints(200, "application/json", b"{}"), 1)
        self.assertEqual(self.complaints(200, "application/json", b"{"), 1)
        self.assertEqual(self.complaints(200, "text/plain", b'{"id": 7}'), 1)
        self.assertEqual(self.complaints(418, "application/json", b"{}"), 1)
        self.assertEqual(self.complaints(404, "application/problem+json", b"{}"), 0)
        self.assertEqual(self.complaints(204, "", b"", "DELETE"), 0)
        self.assertEqual(self.complaints(204, "", b"more", "DELETE"), 1)
        self.assertEqual(self.complaints(200, "", b"", "PUT"), 1)
        self.assertEqual(self.complaints(200, "", b"", path="/nothing"), 1)
        self.assertEqual(self.complaints(404, "", b"", path="/nothing"), 0)


class CommandTest(unittest.TestCase):
    def test_status_signal_time_and_text(self) -> None:
        self.assertEqual(judge.of_command(Command("gnomon runs", 0, (0,), "demo/1")), [])
        self.assertEqual(len(judge.of_command(Command("gnomon runs", 1, (0,), ""))), 1)
        self.assertEqual(len(judge.of_command(Command("gnomon backtest", -11, (0, 1, 2), ""))), 1)
        self.assertEqual(len(judge.of_command(Command("gnomon watch", None, (0,), ""))), 1)
        for text in ("terminate called after throwing", "std::bad_alloc", "Assertion `n > 0' failed"):
            self.assertEqual(len(judge.of_command(Command("gnomon runs", 1, (1,), text))), 1, text)


class ReloadTest(unittest.TestCase):
    def test_good_ones_are_taken_and_bad_ones_are_not(self) -> None:
        self.assertEqual(judge.of_reload(Reload("good", True, 1, taken=True)), [])
        self.assertEqual(judge.of_reload(Reload("bad", False, 0, taken=False)), [])
        self.assertEqual(len(judge.of_reload(Reload("good, refused", True, 0, taken=False))), 1)
        self.assertEqual(len(judge.of_reload(Reload("good, not looked at", True, 1, taken=False))), 1)
        self.assertEqual(len(judge.of_reload(Reload("bad, taken", False, 1, taken=True))), 1)
        self.assertEqual(len(judge.of_reload(Reload("bad, not noticed", False, 1, taken=False))), 1)
        self.assertEqual(len(judge.of_reload(Reload("silent", True, None, taken=False, answers=False))), 1)

    def test_a_certificate_is_served_in_time(self) -> None:
        self.assertEqual(judge.of_rotation(Rotation("two", 1.2, 4)), [])
        self.assertEqual(len(judge.of_rotation(Rotation("two", None, 4))), 1)


class LogTest(unittest.TestCase):
    def test_errors_need_an_explanation_for_their_moment(self) -> None:
        excuses = Excuses()
        with excuses.during("a bad reload", "not read again", slack_seconds=2):
            pass
        now = time.time()
        self.assertTrue(excuses.explains(now, "the configuration was not read again"))
        self.assertFalse(excuses.explains(now, "no backup was made"))
        self.assertFalse(excuses.explains(now + 60, "the configuration was not read again"))
        self.assertFalse(excuses.explains(now - 60, "the configuration was not read again"))
        self.assertEqual(len(judge.of_log_line(LogLine(now, "error", "a request failed", explained=False))), 1)
        self.assertEqual(len(judge.of_log_line(LogLine(now, "critical", "no memory", explained=False))), 1)
        self.assertEqual(judge.of_log_line(LogLine(now, "error", "a request failed", explained=True)), [])
        self.assertEqual(judge.of_log_line(LogLine(now, "warning", "a token was not accepted", explained=False)), [])
        self.assertEqual(len(judge.of_log_line(LogLine(now, "info", "std::out_of_range", explained=False))), 1)


class StreamTest(unittest.TestCase):
    def test_ids_grow_by_one_over_connections(self) -> None:
        follower = Follower()
        for identifiers in (range(7, 12), range(12, 20)):
            follower.begin(follower.last)
            for identifier in identifiers:
                follower.see(identifier)
        follower.see(19, comment=True)
        self.assertEqual(follower.complaints, [])
        follower.see(21)
        follower.see(21)
        follower.see(5)
        follower.see(9, comment=True)
        self.assertEqual(len(follower.complaints), 4)


class ProcessTest(unittest.TestCase):
    def samples(self, late: int) -> list[Sample]:
        return [Sample(share / 100, 50_000 if share < 50 else late, 50, 8) for share in range(0, 101, 5)]

    def test_memory(self) -> None:
        self.assertEqual(judge.of_memory(self.samples(75_000)), [])
        self.assertEqual(len(judge.of_memory(self.samples(150_000))), 1)
        self.assertEqual(len(judge.of_memory([])), 1)

    def test_rest(self) -> None:
        before = Sample(0, 1, 20, 6)
        self.assertEqual(judge.of_rest(before, Sample(1, 1, 24, 7)), [])
        self.assertEqual(len(judge.of_rest(before, Sample(1, 1, 60, 30))), 2)

    def test_end(self) -> None:
        self.assertEqual(judge.of_end(End(True, 0)), [])
        for end in (End(False, 0), End(False, -6), End(True, 1), End(True, -9), End(True, None)):
            self.assertEqual(len(judge.of_end(end)), 1, end)


class AccessTest(unittest.TestCase):
    def test_tokens(self) -> None:
        self.assertEqual(judge.of_access(Access("operator-a", "a foreign run", 403, (403,))), [])
        self.assertEqual(len(judge.of_access(Access("operator-a", "a foreign run", 200, (403,)))), 1)
        self.assertEqual(len(judge.of_access(Access("revoked", "its own run", 200, (401,)))), 1)

    def test_holds(self) -> None:
        self.assertEqual(judge.of_restart(Restart("demo/1", 0.5, 15)), [])
        self.assertEqual(judge.of_restart(Restart("demo/1", None, 15, resumed=True)), [])
        self.assertEqual(len(judge.of_restart(Restart("demo/1", None, 15))), 1)

    def test_orders(self) -> None:
        orders = Orders()
        self.assertEqual(orders.complaints(1, ("pause",)) + orders.complaints(1, ("pause",)), [])
        self.assertEqual(len(orders.complaints(1, ("stop",))), 1)
        orders.done.add(1)
        self.assertEqual(len(orders.complaints(1, ("pause",))), 1)

    def test_backups(self) -> None:
        names = tuple(f"ledger-{day}.sqlite" for day in range(1, 5))
        self.assertEqual(judge.of_backups(Backups((*names, "ledger-5.sqlite.partial"), 3, "ledger-2.sqlite")), [])
        self.assertEqual(len(judge.of_backups(Backups((*names, "ledger-5.sqlite"), 3))), 1)
        self.assertEqual(len(judge.of_backups(Backups(names, 3, "ledger-9.sqlite"))), 1)


class MessagesTest(unittest.TestCase):
    def arrival(self, delivery: str, at: float, status: int = 200, **more: Any) -> Arrival:
        fields: dict[str, Any] = {
            "receiver": "hook",
            "run": "demo/1",
            "kind": "attempt",
            "alert_status": "firing",
            "decision": 0,
            "ended": at + 0.1,
        }
        return Arrival(delivery=delivery, came=at, status=status, **(fields | more))

    def complaints(self, *arrivals: Arrival) -> int:
        return len(judge_messages.of_arrivals(arrivals))

    def test_again_only_until_it_was_taken(self) -> None:
        a, b = self.arrival, self.complaints
        self.assertEqual(b(a("x", 1, 503), a("x", 2, 0), a("x", 3), a("y", 4)), 0)
        self.assertEqual(b(a("x", 1), a("x", 2)), 1)
        self.assertEqual(b(a("x", 1, 400), a("x", 2)), 1)
        self.assertEqual(b(a("x", 1, ended=4.5), a("x", 5)), 0)  # the daemon had left before the answer
        self.assertEqual(b(a("x", 1, 503), a("x", 2, body="another")), 1)

    def test_in_order(self) -> None:
        a, b = self.arrival, self.complaints
        self.assertEqual(b(a("x", 1, 503), a("y", 2)), 1)
        self.assertEqual(b(a("x", 1, 503), a("y", 2, run="other/1"), a("x", 3)), 0)
        self.assertEqual(b(a("x", 1, 503), Arrival.of_removal("hook", 1.5), a("y", 2)), 0)
        self.assertEqual(b(a("x", 1, decision=4, kind="alarm"), a("y", 2, decision=5, kind="action")), 0)
        self.assertEqual(b(a("x", 1, decision=5, kind="action"), a("y", 2, decision=4, kind="alarm")), 1)

    def test_conditions_take_turns(self) -> None:
        begins = self.arrival("x", 1, kind="held")
        ends = self.arrival("y", 2, kind="held", alert_status="resolved")
        again = self.arrival("z", 3, kind="held")
        self.assertEqual(self.complaints(begins, ends, again), 0)
        self.assertEqual(self.complaints(begins, again), 1)
        self.assertEqual(self.complaints(begins, Arrival.of_removal("hook", 2.5), again), 0)

    def test_signatures(self) -> None:
        import hashlib
        import hmac

        sent = str(int(time.time()))
        good = hmac.new(b"key", f"{sent}.body".encode(), hashlib.sha256).hexdigest()
        self.assertTrue(is_genuine(f"t={sent},v1={good}", b"body", "key"))
        self.assertFalse(is_genuine(f"t={sent},v1={good}", b"body", "another key"))
        self.assertFalse(is_genuine(f"t={sent},v1={good}", b"another body", "key"))
        self.assertFalse(is_genuine(f"t=1,v1={good}", b"body", "key"))
        self.assertFalse(is_genuine(None, b"body", "key"))


class PolicyChangesTest(unittest.TestCase):
    def test_every_change_is_one_of_a_key_that_the_policy_has(self) -> None:
        for change in (*CHANGES, *OWN.values()):
            self.assertNotEqual(changed_policy(change), POLICY)


class FindingsTest(unittest.TestCase):
    def test_what_differs_in_its_numbers_is_one_line(self) -> None:
        findings = Findings()
        for step in range(5):
            findings.add("answer", step, f"step {step} was refused")
        findings.add("answer", 9, "something else")
        self.assertEqual(len(findings), 2)
        self.assertIn("[5 times]", findings.lines()[0])


if __name__ == "__main__":
    unittest.main()
