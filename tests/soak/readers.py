"""Those who only read: a follower of the stream, and readers of every view, whose answers the document judges."""

from __future__ import annotations

import http.client
import itertools

from client import Connector
from judge import Follower
from soak import Soak

VIEWS = (
    "steps",
    "checkpoints",
    "windows",
    "decisions",
    "plans",
    "replays",
    "shadow",
    "notices",
    "overrides",
    "audit",
    "device_health",
    "statistics",
    "layers",
    "economics",
    "policy",
    "",
)


class Readers:
    def __init__(self, soak: Soak, connector: Connector) -> None:
        self.soak = soak
        self.connector = connector

    def start(self) -> None:
        self.soak.start("readers", self.read)
        self.soak.start("follower", self.follow)

    def read(self) -> None:
        draw = self.soak.random("readers")
        client = self.connector.client("reader", "readers")
        for turn in itertools.count():
            if self.soak.sleep(draw.uniform(0.2, 0.6)):
                return
            runs = client.get("/v1/runs")
            if not runs.ok or not runs.body:
                continue
            run = draw.choice(runs.body)["run"]
            view = VIEWS[turn % len(VIEWS)]
            limit = draw.choice(["", "?limit=50"]) if view in ("steps", "windows", "decisions", "replays") else ""
            client.get(f"/v1/runs/{run}" + (f"/{view}" if view else "") + limit, expect=(200, 404))
            other = draw.choice(("/v1/notifications", "/v1/audit?newest=50", "/v1/runs?state=live", "/readyz"))
            client.get(other)

    def follow(self) -> None:
        """Follows the stream, is away now and then, and goes on behind the last id that it saw."""
        draw = self.soak.random("follower")
        follower = Follower()
        while not self.soak.stopping.is_set():
            try:
                self._follow(follower, stays=draw.uniform(5, 25))
            except (OSError, http.client.HTTPException) as error:
                if not self.soak.stopping.is_set() and not self.soak.daemon_is_gone():
                    self.soak.found("stream", f"the stream broke: {error!r}")
            self.soak.found("stream", *follower.complaints)
            follower.complaints.clear()
            away = self.soak.times.retention
            self.soak.sleep(draw.choice([0.5, 0.5, 3, 1.5 * away + 70 if self.soak.seconds > 8 * away else 1]))

    def _follow(self, follower: Follower, stays: float) -> None:
        connection = self.connector.connect(20)
        headers = {"Authorization": "Bearer " + self.soak.tokens["reader"]}
        if follower.last is not None:
            headers["Last-Event-ID"] = str(follower.last)
        connection.request("GET", "/v1/events", headers=headers)
        answer = connection.getresponse()
        if answer.status == 410:  # it was away for longer than stream_days: it begins anew
            answer.read()
            follower.begin(None)
            self.soak.tally.add("stream gaps")
            return
        if answer.status != 200:
            self.soak.found("stream", f"the stream was answered {answer.status}")
            return
        follower.begin(follower.last)
        leaves = self.soak.now + stays
        event_id: int | None = None
        has_data = False
        while self.soak.now < leaves and not self.soak.stopping.is_set():
            line = answer.readline()
            if not line:
                break
            if line.startswith(b"id:"):
                event_id = int(line[3:])
            elif line.startswith(b"data:"):
                has_data = True
            elif line == b"\n" and event_id is not None:
                follower.see(event_id, comment=not has_data)
                self.soak.tally.add("stream events")
                event_id, has_data = None, False
        connection.close()
