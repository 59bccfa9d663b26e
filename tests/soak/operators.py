"""People: overrides by hand, policies, commands that look at runs, backups and what is done with copies of them."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import judge
import judge_ledger
from client import Connector
from commands import Commands
from judge import Backups
from settings import BACKUPS_KEPT, POLICY, Settings
from soak import Soak
from trainer import TrainingJob
from truth import BF16_PLAN

REFUSED = (2,)  # exit status of a command that the daemon refuses with 4xx
COPY = "copies/newest.sqlite"
POSSIBLE = (200, 409)  # 409: it makes no sense now, such as a resume of a run that is not paused
LOOKS = ("status", "windows", "decisions", "directives", "notices", "statistics")
CHANGES = (  # of the policy, while the run goes on
    ('mode = "enforce"', 'mode = "observe"'),
    ('mode = "enforce"', 'mode = "advise"'),
    ('"bf16", "hold"]', '"bf16", "stop"]'),
    ('on_loss = "bf16"', 'on_loss = "hold"'),
    ('from = "evidence"', 'from = "here"'),
    ("budget_percent = 60", "budget_percent = 20"),
    ("burn_in_windows", 'kind = "cusum"\nburn_in_windows'),
    ("burn_in_windows", 'kind = "glr"\nburn_in_windows'),
    ("share = 1.0", "share = 3.0"),
    ("actions_max = 6", "actions_max = 0"),
    ("requires = []", 'requires = ["pool=b"]'),
)

# Policies that some jobs have from their beginning to their end.
OWN = {
    "breaks-holds": ("actions_max = 6", "actions_max = 0"),
    "memory": ('on_loss = "bf16"', 'on_loss = "hold"'),
    "nobody-fits": ("requires = []", 'requires = ["pool=nowhere"]'),
}


def changed_policy(change: tuple[str, str]) -> str:
    old, new = change
    assert old in POLICY, old
    return POLICY.replace(old, new)


class Operators:
    """`jobs` are those that live as long as the daemon; cycles.py has those that come and go."""

    def __init__(
        self, soak: Soak, settings: Settings, connector: Connector, commands: Commands, jobs: list[TrainingJob]
    ) -> None:
        self.soak = soak
        self.settings = settings
        self.connector = connector
        self.commands = commands
        self.jobs = jobs
        self.newest_backup = ""

    def start(self) -> None:
        self.soak.start("overrides", self.give_overrides)
        self.soak.start("resumes", self.resume)
        self.soak.start("policies", self.change_policies)
        self.soak.start("commands", self.look)
        self.soak.start("backups", self.back_up)

    def _live(self) -> list[TrainingJob]:
        return [job for job in self.jobs if job.run and not job.ended]

    def give_overrides(self) -> None:
        draw = self.soak.random("overrides")
        client = self.connector.client("operator", "overrides")
        limited = self.connector.client("operator-a", "overrides of team-a")
        while not self.soak.sleep(draw.uniform(1.5, 5)):
            if not self._live():
                continue
            job = draw.choice(self._live())
            kind = draw.choice(["pause", "resume", "checkpoint_now", "set_plan", "silence", "mode", "mode"])
            reason = f"override at {self.soak.now:.1f} s"
            body: dict[str, object] = {"kind": kind, "owner": "mira", "reason": reason}
            if kind in ("set_plan", "silence", "mode"):
                seconds = draw.choice([1, 5, 15])
                body["expires_seconds"] = seconds
                job.note_order(seconds)
            if kind == "set_plan":
                body["plan"] = draw.choice([BF16_PLAN, '[[rule]]\nmatch = "lm_head"\ngemms = "bf16"\n'])
            if kind == "mode":
                body["mode"] = draw.choice(["observe", "advise", "enforce"])
            who = limited if job.name.startswith("team-a") and draw.random() < 0.5 else client
            if who.post(f"/v1/runs/{job.run}/overrides", body, expect=POSSIBLE).ok:
                self.soak.tally.add("overrides")

    def resume(self) -> None:
        """Somebody looks at runs that stand still, and lets them go on."""
        draw = self.soak.random("resumes")
        client = self.connector.client("operator", "resumes")
        while not self.soak.sleep(5):
            for job in self._live():
                if job.paused and draw.random() < 0.4:
                    body = {"kind": "resume", "owner": "noor", "reason": "looked at it"}
                    if client.post(f"/v1/runs/{job.run}/overrides", body, expect=POSSIBLE).ok:
                        self.soak.tally.add("overrides")

    def change_policies(self) -> None:
        draw = self.soak.random("policies")
        client = self.connector.client("operator", "policies")
        own = {job: changed_policy(OWN[job.name]) for job in self.jobs if job.name in OWN}
        while not self.soak.sleep(draw.uniform(4, 10)):
            for job in [job for job in own if job.run]:
                client.ask("PUT", f"/v1/runs/{job.run}/policy", own.pop(job))
            others = [job for job in self._live() if job.name not in OWN]
            if not others:
                continue
            job = draw.choice(others)
            place = f"/v1/runs/{job.run}/policy"
            client.ask("PUT", place, draw.choice([POLICY, changed_policy(draw.choice(CHANGES))]))
            if draw.random() < 0.3:
                client.ask("PUT", place, POLICY.replace("mode", "mood"), expect=(400,))
            client.get(place)

    def look(self) -> None:
        """Commands that read, and orders by the command line."""
        draw = self.soak.random("commands")
        ask = self.commands.ask
        while not self.soak.sleep(draw.uniform(0.5, 1.5)):
            if not self._live():
                continue
            job = draw.choice(self._live())
            run = f"{job.name}/{job.job}"
            ask(draw.choice(LOOKS), run, token=draw.choice(["reader", "operator", "admin"]))
            chance = draw.random()
            if chance < 0.2:
                ask("runs", token="reader")
            elif chance < 0.4:
                job.note_order(3)
                words = draw.choice(
                    [("silence", "--for", "3s"), ("mode", "advise", "--for", "2s"), ("checkpoint_now",)]
                )
                if ask("override", run, *words, "--reason", "by the command line", expect=(0, 2)).status == 0:
                    self.soak.tally.add("overrides")
            elif chance < 0.5:
                ask("override", run, "silence", "--reason", "no end is said", expect=REFUSED)
            elif chance < 0.6:
                ask("override", run, "resume", "--reason", "a reader may not", token="reader", expect=REFUSED)
            elif chance < 0.65:
                ask("status", "nobody/7", expect=REFUSED)
            elif chance < 0.7:
                ask("runs", "delete", run, "--yes", token="admin", expect=REFUSED)
            elif chance < 0.8:
                ask("ready")
            elif chance < 0.9:
                self.commands.local("audit", "verify", "--ledger", "ledger.sqlite")
            else:
                self.commands.local("policy", "explain", "policy.toml")

    def back_up(self) -> None:
        """Backups that are asked for, the folder of all of them, and what is done with a copy of the newest."""
        draw = self.soak.random("backups")
        wait = max(4.0, self.soak.times.backup_every / 2)
        while not self.soak.sleep(draw.uniform(0.7 * wait, 1.3 * wait)):
            self.commands.ask("ledger", "backup", token="admin", expect=(0, 2))  # 2: one is being made
            self.commands.ask("ledger", "backup", token="reader", expect=REFUSED)
            copy = self._newest_copy()
            if copy is None:
                continue
            self.commands.local("ledger", "check", "--ledger", COPY)
            self._use(copy, draw.sample(self._live(), min(2, len(self._live()))))
            copy.unlink()

    def _newest_copy(self) -> Path | None:
        folder = self.settings.path("backups")
        names = tuple(path.name for path in folder.iterdir())
        self.soak.found("backup", *judge.of_backups(Backups(names, BACKUPS_KEPT, self.newest_backup)))
        whole = sorted(name for name in names if name.endswith(".sqlite"))
        if not whole:
            return None
        self.newest_backup = whole[-1]
        copy = self.settings.path(COPY)
        try:
            shutil.copy(folder / whole[-1], copy)
        except FileNotFoundError:  # a newer one has taken its place
            return None
        self.soak.tally.add("backups looked at")
        return copy

    def _use(self, copy: Path, jobs: list[TrainingJob]) -> None:
        """Backtest, summary and report; 1 where retention took the run's events."""
        ledger = ["--ledger", COPY]
        with contextlib.closing(judge_ledger.open_read_only(copy)) as connection:
            rows = connection.execute("SELECT name || '/' || job_id, state FROM runs").fetchall()
        states = dict(rows)
        for job in jobs:
            run = f"{job.name}/{job.job}"
            if states.get(run) != "live":
                continue
            self.commands.local("backtest", *ledger, "--run", run)
            self.commands.local("backtest", *ledger, "--run", run, "--policy", "policy.toml")
            self.commands.local("summary", *ledger, "--run", run)
            self.commands.local("report", *ledger, "--run", run, "--out", "copies/report.html")
        ended = [run for run, state in rows if state in ("completed", "stopped", "failed")]
        for run in ended[:1]:
            self.commands.local("backtest", *ledger, "--run", run, expect=(0, 1, 2))
            self.commands.local("summary", *ledger, "--run", run, expect=(0, 1, 2))
