"""A simulated training job: reports like a trainer's spool, takes directives, and misbehaves in ways its habits say."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import judge
import reports
from client import Client, Connector, Reply
from judge import Orders, Restart
from replays import LOST, result_of
from soak import Soak
from truth import FINGERPRINT, Fault, Truth

WINDOW = 5  # steps between two checkpoints
PAUSED_WITHIN_SECONDS = 15.0


@dataclass(frozen=True)
class Habits:
    """How a job behaves; the numbers are probabilities, of a step, a directive or a turn."""

    fault: Fault | None = None
    turn_seconds: float = 1.2
    steps: int = 1_000_000
    not_finite: float = 0
    spike: float = 0
    rejects: float = 0
    ignores: float = 0  # directives that it never answers
    late: float = 0  # directives that it answers after their deadline, or nearly
    restarts: float = 0
    notices: float = 0
    broken_host: float = 0  # windows whose weights come out otherwise than they should
    statistics: bool = False
    device: bool = False
    inline: bool = False  # replays itself
    goes_silent: bool = False
    breaks_holds: bool = False  # a held job is started anew instead of being resumed


class TrainingJob:
    """One job of one run; `live` is a thread's work from registration to the end of the job or of the soak."""

    def __init__(self, soak: Soak, connector: Connector, name: str, habits: Habits, job: str = "1") -> None:
        self.soak = soak
        self.name = name
        self.job = job
        self.habits = habits
        self.client: Client = connector.client("trainer-a" if name.startswith("team-a") else "trainer", name)
        self.random: random.Random = soak.random(f"trainer {name}/{job}")
        self.truth = Truth(f"{name}/{job}", habits.fault)
        self.run = ""
        self.step = self.attempt = self.directives_done = 0
        self.version = 1
        self.paused_at: float | None = None
        self.held_since: float | None = None  # a restart out of a hold that waits for its pause
        self.ordered_until = 0.0  # the end of the last plan, silence or mode by hand
        self.ended = ""
        self.may_be_deleted = False
        self.orders = Orders()
        self.checkpoints = {0}
        self.answered: dict[int, str] = {}
        self.put_off: dict[int, tuple[float, dict[str, Any]]] = {}

    @property
    def paused(self) -> bool:
        return self.paused_at is not None

    # What it reports

    def post(self, place: str, body: dict[str, Any]) -> Reply:
        return self.client.post(f"/v1/runs/{self.run}/{place}", body)

    def register(self) -> bool:
        root = str(self.soak.folder / "checkpoints" / self.name)
        body = reports.registration(self.name, self.job, self.habits.steps, root, self.habits.inline)
        reply = self.client.post("/v1/runs", body)
        if reply.ok:
            self.run = reply.body["run"]
        return reply.ok

    def begin_attempt(self, base: int, cause: str) -> bool:
        self.attempt += 1
        self.step = base
        ok = self.post("attempts", reports.attempt(self.name, self.attempt, base, cause, self.version)).ok
        return ok and self.checkpoint()

    def checkpoint(self) -> bool:
        self.checkpoints.add(self.step)
        root = f"{self.soak.folder}/checkpoints/{self.name}/{self.job}"
        weights = self.truth.weights(self.attempt, self.step)
        return self.post("checkpoints", reports.checkpoint(root, self.attempt, self.step, self.version, weights)).ok

    def train(self) -> None:
        """Steps up to the next checkpoint, reported in one batch, now and then twice."""
        steps = []
        for _ in range(WINDOW - self.step % WINDOW):
            self.step += 1
            key = (self.attempt, self.step)
            self.truth.versions[key] = self.version
            loss, norm = reports.misfortune(self.random, self.habits.not_finite, self.habits.spike)
            if loss is not None:
                self.truth.losses[key] = loss(self.truth.usual_loss(*key))
            seconds = self.habits.turn_seconds / WINDOW
            steps.append(reports.step(self.truth, self.attempt, self.step, self.version, norm, seconds))
        if self.random.random() < self.habits.broken_host:
            self.truth.broken_hosts.add((self.attempt, self.step))
        if self.habits.device:
            steps[-1]["device_health"] = reports.device_health(self.random, self.step)
        if self.post("steps", {"steps": steps}).ok:
            self.soak.tally.add("steps", len(steps))
        if self.random.random() < 0.05:
            self.post("steps", {"steps": steps})
        self.checkpoint()
        if self.random.random() < self.habits.notices:
            self.post("notices", reports.notice(self.random, self.attempt, self.step))
        if self.habits.statistics and self.step % 20 == 0:
            self.post("statistics", reports.statistics(self.random, self.attempt, self.step, self.version))

    def finish(self, outcome: str) -> None:
        self.ended = outcome
        self.post("finished", reports.finished(outcome, self.step))

    def restart(self) -> None:
        """As a scheduler starts a job again: registered anew, from its newest checkpoint, directives from the first."""
        self.register()
        self.put_off.clear()
        self.begin_attempt(self.step - self.step % WINDOW, "restart")

    # What it is told

    def poll(self, wait: str = "0") -> None:
        reply = self.client.get(f"/v1/runs/{self.run}/directives?after={self.directives_done}&wait={wait}")
        if not reply.ok:
            return
        for directive in reply.body["directives"]:
            if not self.ended:
                self._take(directive)
        while self.directives_done + 1 in self.answered:
            self.directives_done += 1

    def _take(self, directive: dict[str, Any]) -> None:
        number = directive["number"]
        order = (directive["kind"], directive["plan"], directive["plan_version"], directive["to_step"])
        complaints = self.orders.complaints(number, order)
        self.soak.found("directive", *(f"{self.truth.name}: {text}" for text in complaints))
        if number in self.answered or number in self.put_off:
            return
        chance = self.random.random()
        if chance < self.habits.ignores:
            self.answered[number] = "ignored"
            self.soak.tally.add("directives ignored")
        elif chance < self.habits.ignores + self.habits.late:
            self.put_off[number] = (time.time() + self.random.choice([2, 6, 12]), directive)
        else:
            self._carry_out(directive)

    def _carry_out(self, directive: dict[str, Any]) -> None:
        number, kind = directive["number"], directive["kind"]
        state = self._acknowledge(number, "acknowledged")
        if state != "acknowledged":  # it is moot: expired, or another order took its place
            self.answered[number] = state or "unanswered"
            return
        refuses = self.random.random() < self.habits.rejects and kind != "stop"
        if refuses or (kind == "rollback" and directive["to_step"] not in self.checkpoints):
            self.answered[number] = "rejected"
            self._acknowledge(number, "rejected", "the trainer would not")
            return
        self.answered[number] = "applied"
        if self._acknowledge(number, "applied") == "applied":
            self.orders.done.add(number)
        self.soak.tally.add(f"applied {kind}")
        self._obey(directive)

    def _acknowledge(self, number: int, state: str, reason: str = "") -> str:
        body = {"state": state, "attempt": self.attempt, "step": self.step, "reason": reason, "time": time.time()}
        reply = self.post(f"directives/{number}/ack", body)
        return reply.body["state"] if reply.ok else ""

    def _obey(self, directive: dict[str, Any]) -> None:
        kind = directive["kind"]
        if kind in ("set_plan", "rollback") and directive["plan"]:
            self.version = directive["plan_version"]
            self.truth.plans[self.version] = directive["plan"]
        if kind == "rollback":
            self.begin_attempt(directive["to_step"], "rollback")
        elif kind == "pause":
            self.paused_at = time.time()
            self._judge_restart(self.paused_at)
        elif kind == "resume":
            self.paused_at = None
            self.held_since = None
        elif kind == "checkpoint_now":
            self.checkpoint()
        elif kind == "stop":
            self.finish("stopped")

    # Holds: a job that is on hold and is started again must be paused again.

    def break_hold(self) -> None:
        shown = self.client.get(f"/v1/runs/{self.run}")
        if not shown.ok or shown.body["phase"] != "holding":
            return
        self.paused_at = None
        self.restart()
        self.held_since = time.time()
        self.soak.tally.add("restarts out of a hold")

    def note_order(self, seconds: float) -> None:
        """A plan, silence or mode by hand for so long: while it is in force nothing else is ordered."""
        self.ordered_until = max(self.ordered_until, time.time() + seconds)

    def _pause_is_late(self) -> bool:
        if self.held_since is None:
            return False
        return time.time() - max(self.held_since, self.ordered_until) > PAUSED_WITHIN_SECONDS

    def _judge_restart(self, paused_at: float | None) -> None:
        if self.held_since is None:
            return
        after = None if paused_at is None else paused_at - self.held_since
        resumed = False
        if after is None:
            shown = self.client.get(f"/v1/runs/{self.run}")
            resumed = not shown.ok or shown.body["phase"] != "holding"
        restart = Restart(self.truth.name, after, PAUSED_WITHIN_SECONDS, resumed)
        self.soak.found("hold", *judge.of_restart(restart))
        self.held_since = None

    # Its soak

    def live(self, by_run: dict[str, TrainingJob]) -> None:
        """All of it; `by_run` is where verifiers look for the truth of what they replay."""
        while not self.register():
            if self.soak.sleep(2):
                return
        by_run[self.run] = self
        self.begin_attempt(0, "start")
        while not self.soak.stopping.is_set() and not self.ended:
            if self.habits.goes_silent and self.soak.away("silent run"):
                self.soak.sleep(1)
                continue
            self._turn()

    def _turn(self) -> None:
        for number, (when, directive) in list(self.put_off.items()):
            if when < time.time() and not self.ended:
                del self.put_off[number]
                self._carry_out(directive)
        if self._pause_is_late():
            self._judge_restart(None)
        if self.ended:
            return
        if self.paused:
            self.poll("2s")
            if self.habits.breaks_holds and self.paused and self.random.random() < 0.3:
                self.break_hold()
            self.soak.sleep(0.3)
            return
        self.train()
        if self.step >= self.habits.steps:
            self.finish("completed")
            return
        if self.random.random() < self.habits.restarts:
            self.restart()
        self.poll()
        if self.habits.inline:
            self._replay_inline()
        self.soak.sleep(self.habits.turn_seconds * self.random.uniform(0.6, 1.4))

    def _replay_inline(self) -> None:
        who = f"trainer:node:{self.name}"
        body = {"verifier": who, "fingerprint": FINGERPRINT, "run": self.run, "on_trainer": True}
        reply = self.client.post("/v1/leases?wait=0", body, expect=(200, 204))
        if reply.status == 200:
            result = result_of(self.truth, reply.body, self.random)
            self.client.post(f"/v1/leases/{reply.body['lease']}/complete", result, expect=LOST)
