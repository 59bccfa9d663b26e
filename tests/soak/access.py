"""Tokens: those for some runs act on no others, and those that are revoked or over open nothing any more."""

from __future__ import annotations

import time
from collections.abc import Callable

import judge
from client import Connector
from commands import Commands
from excuses import Excuses
from judge import Access
from settings import TEAM_RUNS, Settings, put
from soak import Soak
from trainer import TrainingJob

KNOWN_WITHIN_SECONDS = 4.0  # the file is looked at every second
REFUSED = (403,)
OVER = (401,)
TAKEN = (200, 409)  # 409: it makes no sense now


class AccessChecks:
    def __init__(
        self, soak: Soak, settings: Settings, connector: Connector, commands: Commands, jobs: list[TrainingJob]
    ) -> None:
        self.soak = soak
        self.settings = settings
        self.connector = connector
        self.commands = commands
        self.inside = next(job for job in jobs if job.name.startswith("team-a"))
        self.outside = next(job for job in jobs if not job.name.startswith("team-a"))

    def start(self) -> None:
        self.soak.start("tokens for some runs", self.try_foreign_runs)
        self.soak.start("tokens that end", self.create_and_end)

    def _ask(self, token: str, job: TrainingJob, allowed: tuple[int, ...]) -> int:
        """An order that changes nothing much; the status is judged here and not by the client. A token that is not
        known counts as a stranger's, and strangers.py sends many of those: 429 is asked again."""
        client = self.connector.client(token, f"token {token}")
        body = {"kind": "silence", "owner": "tokens", "reason": "a try", "expires_seconds": 0.5}
        every = (200, 401, 403, 409, 429)
        status = 429
        while status == 429 and not self.soak.sleep(0.1):
            status = client.post(f"/v1/runs/{job.run}/overrides", body, expect=every).status
        client.close()
        if status == 429:  # the soak has ended meanwhile
            return status
        self.soak.found("access", *judge.of_access(Access(token, f"an override of {job.name}", status, allowed)))
        if status == 200:
            self.soak.tally.add("overrides")
        self.soak.tally.add(f"tries of tokens {status}")
        return status

    def try_foreign_runs(self) -> None:
        draw = self.soak.random("foreign runs")
        trainer = self.connector.client("trainer-a", "trainer-a at a foreign run")
        while not self.soak.sleep(draw.uniform(2, 6)):
            if not (self.inside.run and self.outside.run):
                continue
            foreign = f"/v1/runs/{self.outside.run}"
            self._ask("operator-a", self.outside, REFUSED)
            trainer.post(f"{foreign}/steps", {"steps": []}, expect=REFUSED)
            trainer.get(f"{foreign}/directives?after=0&wait=0", expect=REFUSED)
            trainer.post(f"{foreign}/finished", {"outcome": "failed", "step": 1}, expect=REFUSED)
            self.connector.client("reader", "a reader").post(f"{foreign}/end", {"owner": "a", "reason": "b"}, REFUSED)
            trainer.get(foreign)

    def create_and_end(self) -> None:
        """A token that is revoked, then one that ends by itself; now and then the file cannot be read for a while."""
        draw = self.soak.random("tokens that end")
        turn = 0
        while not self.soak.sleep(draw.uniform(2, 5)):
            turn += 1
            if not (self.inside.run and self.outside.run):
                continue
            name = f"temporary-{turn}"
            lasts = 4 if turn % 2 else 600
            began = time.time()
            words = ("--runs", TEAM_RUNS, "--expires", f"{lasts}s")
            self.settings.create_token(name, "operator", *words)
            if not self._becomes(name, lambda status: status != 401, began + min(lasts, KNOWN_WITHIN_SECONDS) - 0.5):
                if lasts > KNOWN_WITHIN_SECONDS:
                    self.soak.found("access", f"the new token {name} is not known")
            elif lasts > KNOWN_WITHIN_SECONDS:
                self._ask(name, self.outside, REFUSED)
            if turn % 3 == 0:
                self._break_file()
            if lasts > KNOWN_WITHIN_SECONDS:
                self._file("revoke", name)
                over_by = time.time() + KNOWN_WITHIN_SECONDS
            else:
                over_by = began + lasts + 1
            self._becomes(name, lambda status: status == 401, over_by)
            self._ask(name, self.inside, OVER)
            if lasts <= KNOWN_WITHIN_SECONDS:
                self._file("revoke", name)
            self._file("list")
            self.soak.tally.add("tokens")

    def _file(self, word: str, *more: str) -> None:
        self.commands.local("token", word, *more, "--file", "tokens.toml")

    def _becomes(self, token: str, wanted: Callable[[int], bool], until: float) -> bool:
        while time.time() < until:
            if wanted(self._ask(token, self.inside, TAKEN + OVER)):
                return True
            time.sleep(0.3)
        return False

    def _break_file(self) -> None:
        """What cannot be read, or is empty, changes nothing: those who are known stay known."""
        file = self.settings.path("tokens.toml")
        excuses: Excuses = self.soak.excuses
        good = file.read_text()
        pattern = "not read again, the last good ones? stays?"
        for broken in ("garbage [", ""):
            with self.soak.files, excuses.during("a broken file of tokens", pattern):
                put(file, broken)
                time.sleep(2)
                self._ask("operator", self.inside, TAKEN)
                put(file, good)
                time.sleep(1.5)
