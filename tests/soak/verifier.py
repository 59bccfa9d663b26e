"""Simulated verifiers: they replay what they lease as the job's truth says, and die, lie, fail and dawdle by habit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from client import Connector
from replays import GONE, LOST, result_of, spoil
from soak import Soak
from trainer import TrainingJob
from truth import FINGERPRINT


@dataclass(frozen=True)
class Habits:
    """Of a verifier; probabilities of a lease."""

    labels: tuple[tuple[str, str], ...] = ()
    dies: float = 0
    fails: float = 0
    lies: float = 0
    slow: float = 0
    backend: str = "cpu"
    away: str = ""  # another name in soak.AWAY during which it does not ask


class Verifier:
    def __init__(
        self, soak: Soak, connector: Connector, name: str, habits: Habits, jobs: dict[str, TrainingJob]
    ) -> None:
        self.soak = soak
        self.name = name
        self.habits = habits
        self.jobs = jobs
        self.client = connector.client("verifier", name)
        self.random = soak.random(f"verifier {name}")

    def live(self) -> None:
        while not self.soak.stopping.is_set():
            if self.soak.away("verifiers") or (self.habits.away and self.soak.away(self.habits.away)):
                self.soak.sleep(1)
                continue
            fingerprint = FINGERPRINT | {"backend": self.habits.backend}
            body = {"verifier": self.name, "fingerprint": fingerprint, "labels": dict(self.habits.labels)}
            reply = self.client.post("/v1/leases?wait=2s", body, expect=(200, 204))
            if reply.status == 200:
                self._work(reply.body)
            elif reply.status != 204:
                self.soak.sleep(1)

    def _work(self, lease: dict[str, Any]) -> None:
        self.soak.tally.add("leases")
        place = f"/v1/leases/{lease['lease']}"
        job = self.jobs.get(lease["task"]["run"])
        chance = self.random.random()
        lost = LOST + GONE if job is None or job.may_be_deleted else LOST
        if job is None or chance < self.habits.fails:
            body = {"token": lease["token"], "reason": "it cannot be read\na second line", "retryable": chance < 0.8}
            self.client.post(place + "/fail", body, expect=lost)
            return
        if chance < self.habits.fails + self.habits.dies:
            self.soak.tally.add("leases that died")
            self.soak.sleep(3)  # longer than the lease
            if self.random.random() < 0.5:
                return
        elif self.random.random() < self.habits.slow:
            for done in range(3):
                self.soak.sleep(0.8)
                self.client.post(place + "/heartbeat", {"token": lease["token"], "steps_done": done}, expect=lost)
        else:
            self.soak.sleep(0.1)
        lies = self.random.random() < self.habits.lies
        result = result_of(job.truth, lease, self.random, lies)
        expected = spoil(result, self.random)
        reply = self.client.post(place + "/complete", result, expect=expected + lost[2:])
        if reply.ok and self.random.random() < 0.03:
            self.client.post(place + "/complete", result, expect=lost)
