"""SIGHUP with good and bad configurations, and certificates that take each other's place."""

from __future__ import annotations

import os
import signal
import ssl
import time
from dataclasses import dataclass

import judge
import judge_ledger
from client import Connector
from commands import Commands
from judge import Reload, Rotation
from receivers import Receivers
from settings import CERTIFICATES, Settings, put
from soak import Soak

NOT_READ = "the configuration was not read again, the last good one stays"
TAKEN_WITHIN_SECONDS = 6.0


@dataclass(frozen=True)
class Change:
    """Of the configuration: a text in the place of another; an empty old text is added at the end."""

    name: str
    old: str = ""
    new: str = ""

    def apply(self, text: str) -> str:
        assert self.old in text, f"{self.name}: {self.old} is not in the configuration"
        return text.replace(self.old, self.new, 1) if self.old else text + self.new


BAD = (
    Change("an unknown key", "threads = 2", "treads = 2"),
    Change("a text for a number", "keep = 3", 'keep = "three"'),
    Change("an unknown kind of message", '"ended", "held"', '"endet"'),
    Change("two receivers of one name", 'name = "critical"', 'name = "hook"'),
    Change("a certificate that is not there", '"server.pem"', '"nowhere.pem"'),
    Change("a key of another certificate", '"server.key"', '"ca.key"'),
    Change("a negative time", "idle_seconds = ", "idle_seconds = -"),
    Change("no TOML", "", "\n[broken\n"),
    Change("a policy that is not there", '"policy.toml"', '"nowhere.toml"'),
    Change("a user in a URL", "http://127.0.0.1:", "http://me:secret@127.0.0.1:"),
    Change("a folder of backups that is not there", '"backups"', '"nowhere"'),
)
AS_IT_WAS = Change("as it was")
RENAMED = Change("another name for a receiver", 'name = "critical"', 'name = "critical-2"')
GOOD = (
    Change("fewer kinds", 'name = "hook"\n', 'name = "hook"\nkinds = ["alarm", "held", "paused", "ended"]\n'),
    RENAMED,
    Change("fewer backups", "keep = 3", "keep = 2"),
    Change("more in the log", '"info"', '"debug"'),
    Change("a higher rate", "requests_per_second = 400.0", "requests_per_second = 500.0"),
    Change("what waits for a restart", "threads = 2", "threads = 3"),
    AS_IT_WAS,
)


class Reloads:
    def __init__(
        self,
        soak: Soak,
        settings: Settings,
        connector: Connector,
        commands: Commands,
        receivers: Receivers,
        daemon: int,
    ) -> None:
        self.soak = soak
        self.settings = settings
        self.commands = commands
        self.receivers = receivers
        self.daemon = daemon
        self.client = connector.client("reader", "reloads")
        self.before = AS_IT_WAS  # the good configuration that is in force

    def start(self) -> None:
        self.soak.start("reloads", self.reload)

    def reload(self) -> None:
        """Bad and good configurations in turns, with a certificate between; ends with what the soak began with."""
        draw = self.soak.random("reloads")
        wait = min(max(self.soak.seconds / 60, 2.0), 12.0)
        names = [name for name in CERTIFICATES if name != "one"] + ["one"]
        turn = 0
        while not self.soak.sleep(draw.uniform(0.7 * wait, 1.3 * wait)):
            bad = BAD[turn % len(BAD)]
            with self.soak.files:
                with self.soak.excuses.during(f"reload of {bad.name}", NOT_READ):
                    self.send(bad, good=False)
                self.send(GOOD[turn % len(GOOD)], good=True)
                self.rotate(names[turn % len(names)], wait_between=draw.choice([0, 0, 1.5 * self.soak.times.look]))
            turn += 1
        with self.soak.files:
            self.send(AS_IT_WAS, good=True)

    def send(self, change: Change, good: bool) -> None:
        """Writes the file, sends SIGHUP, and asks the metrics what became of it."""
        before = self._state()
        put(self.settings.file, change.apply(self.settings.configuration()))
        self.commands.local("check-config", "gnomond.toml", tool="gnomond", expect=(0,) if good else (2,))
        if good:
            self._note_removals(change)
        os.kill(self.daemon, signal.SIGHUP)
        self.soak.tally.add("reloads good" if good else "reloads bad")
        until = time.time() + TAKEN_WITHIN_SECONDS
        successful, when = self._state()
        while time.time() < until and ((when == before[1]) if good else (successful != 0)):
            time.sleep(0.2)
            successful, when = self._state()
        taken = when is not None and when != before[1]
        reload = Reload(change.name, good, successful, taken, answers=when is not None)
        self.soak.found("reload", *judge.of_reload(reload))
        if not good:
            put(self.settings.file, self.settings.configuration())

    def _note_removals(self, change: Change) -> None:
        """Both when the name is another one and when the next configuration takes that back."""
        if RENAMED in (change, self.before):
            self.receivers.removed("critical")
        self.before = change

    def _state(self) -> tuple[float | None, float | None]:
        series = judge_ledger.read_metrics(self.client.get("/metrics").raw.decode())
        return (
            judge_ledger.value_of(series, "gnomon_config_last_reload_successful"),
            judge_ledger.value_of(series, "gnomon_config_last_reload_success_timestamp_seconds"),
        )

    def rotate(self, name: str, wait_between: float) -> None:
        """Another certificate; between key and certificate they do not belong together, which the log may say."""
        wanted = self.settings.path(f"{name}.pem").read_text()
        limit = self.soak.times.look + 3
        with self.soak.excuses.during(f"rotation to {name}", "the certificate was not read again|" + NOT_READ):
            put(self.settings.path("server.key"), self.settings.path(f"{name}.key").read_text())
            time.sleep(wait_between)
            put(self.settings.path("server.pem"), wanted)
            began = time.time()
            while time.time() < began + limit and self._served() != wanted.strip():
                time.sleep(0.2)
        served_after = time.time() - began if self._served() == wanted.strip() else None
        self.soak.tally.add("certificates")
        self.soak.found("certificate", *judge.of_rotation(Rotation(name, served_after, limit)))

    def _served(self) -> str:
        try:
            return ssl.get_server_certificate(("127.0.0.1", self.soak.port), timeout=10).strip()
        except (OSError, ssl.SSLError):
            return ""
