"""The verdict over what receivers were sent: order, repetitions, beginnings and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONDITIONS = {"investigation", "fallback", "held", "paused", "silent", "unheeded", "broken_instrument"}
LATE_SECONDS = 2.0  # timeout_seconds is 3: what was answered later may not have been heard


@dataclass(frozen=True)
class Arrival:
    """A message at a receiver. `status` is what was answered, 0 when the daemon heard no answer."""

    receiver: str
    delivery: str
    run: str
    kind: str
    alert_status: str  # firing, resolved
    decision: int
    came: float
    ended: float
    status: int
    sent: float = 0.0  # by its signature
    body: str = ""
    removed: bool = False  # no message, but: the receiver was taken out of the configuration

    @staticmethod
    def of_removal(receiver: str, when: float) -> Arrival:
        return Arrival(receiver, "", "", "", "", 0, when, when, 0, removed=True)

    @property
    def final(self) -> bool:
        """Taken or refused for good, as docs/notifications.md says."""
        return 200 <= self.status < 300 or (300 <= self.status < 500 and self.status not in (408, 425, 429))

    @property
    def doubtful(self) -> bool:
        """The daemon may have given up waiting just before the answer."""
        return self.ended - (self.sent or self.came) > LATE_SECONDS


def time_of_signature(header: str | None) -> float:
    for part in (header or "").split(","):
        name, _, value = part.partition("=")
        if name == "t" and value.isdigit():
            return float(value)
    return 0.0


def of_arrivals(arrivals: Sequence[Arrival]) -> list[str]:
    """Of each receiver and run by itself."""
    complaints = []
    ordered = sorted(arrivals, key=lambda arrival: arrival.came)
    for receiver in sorted({arrival.receiver for arrival in ordered}):
        own = [arrival for arrival in ordered if arrival.receiver == receiver]
        for run in sorted({arrival.run for arrival in own if not arrival.removed}):
            of_run = [arrival for arrival in own if arrival.removed or arrival.run == run]
            complaints += Course(f"{run} to {receiver}").complaints_of(of_run)
    return complaints


class Course:
    """The messages of one run to one receiver, in the order of their coming."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.complaints: list[str] = []
        self._ended: dict[str, Arrival] = {}
        self._bodies: dict[str, str] = {}
        self._waiting: Arrival | None = None
        self._conditions: dict[str, str] = {}
        self._decision = 0

    def complaints_of(self, arrivals: Sequence[Arrival]) -> list[str]:
        for arrival in arrivals:
            if arrival.removed:  # what waited went with it, and it will be told anew of what lasts
                self._conditions.clear()
                self._waiting = None
            elif arrival.delivery in self._bodies:
                self._again(arrival)
            else:
                self._first(arrival)
            if arrival.final:
                self._ended[arrival.delivery] = arrival
                if self._waiting is not None and self._waiting.delivery == arrival.delivery:
                    self._waiting = None
        return self.complaints

    def _again(self, arrival: Arrival) -> None:
        ended = self._ended.get(arrival.delivery)
        if ended is not None and not ended.doubtful and not arrival.doubtful:
            self._say(f"{arrival.kind} ({arrival.delivery}) came again after it was answered {ended.status}")
        if self._bodies[arrival.delivery] != arrival.body:
            self._say(f"{arrival.kind} ({arrival.delivery}) came again with another body")

    def _first(self, arrival: Arrival) -> None:
        self._bodies[arrival.delivery] = arrival.body
        if self._waiting is not None and not self._waiting.doubtful:
            self._say(f"{arrival.kind} came before {self._waiting.kind} ({self._waiting.delivery}) was taken")
        self._waiting = arrival
        if arrival.kind in CONDITIONS:
            self._condition(arrival)
        elif arrival.decision:
            if arrival.decision <= self._decision:
                self._say(f"decision {arrival.decision} came behind decision {self._decision}")
            self._decision = arrival.decision

    def _condition(self, arrival: Arrival) -> None:
        """Firing and resolved take turns, whatever was answered. The end of one that began before all that was seen
        here is no mistake."""
        before = self._conditions.get(arrival.kind)
        if before == arrival.alert_status:
            self._say(f"{arrival.kind} is {arrival.alert_status} twice")
        self._conditions[arrival.kind] = arrival.alert_status

    def _say(self, what: str) -> None:
        self.complaints.append(f"{self.who}: {what}")
