"""A soak: one gnomond, everything configured at once, and a verdict. `scripts/soak --help` says how."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cast
import judge
import judge_ledger
import watch as watching
from access import AccessChecks
from client import Connector
from commands import Commands
from contract import Contract
from cycles import Cycles
from daemon import Daemon
from judge import Sample
from operators import Operators
from readers import Readers
from receivers import Receivers
from reloads import Reloads
from settings import Settings
from soak import Soak
from strangers import Strangers
from trainer import TrainingJob
from truth import FINGERPRINT
from watch import Watch

PROGRESS_SECONDS = 30.0
REST_SLACK_SECONDS = 25.0  # of retention, whose round begins with the last reload


class World:
    """A daemon and all who have to do with it."""

    def __init__(self, soak: Soak) -> None:
        self.soak = soak
        self.receivers = Receivers(soak)
        nobody = socket.socket()
        nobody.bind(("127.0.0.1", 0))
        self.settings = Settings(soak, self.receivers.port, nobody)
        self.settings.write()
        self.daemon = Daemon(soak, self.settings)
        soak.alive = lambda: self.daemon.status is None
        self.connector = Connector(soak, self.settings.authority)
        self.commands = Commands(soak, self.settings)
        self.by_run: dict[str, TrainingJob] = {}
        self.watch = Watch(soak, self.settings, self.connector, self.daemon.process)
        self.before: Sample | None = None

    def begin(self) -> None:
        soak, connector = self.soak, self.connector
        client = connector.client("reader", "document")
        connector.contract = Contract(client.get("/openapi.json").body)
        client.close()
        soak.excuses.always(
            "receivers refuse, and nobody listens for one of them",
            r"^(a notification was|notifications were) dropped: ",
        )
        self.before = self.watch.sample()
        jobs = cast.start_jobs(soak, connector, self.by_run)
        cast.start_verifiers(soak, connector, self.by_run)
        Operators(soak, self.settings, connector, self.commands, jobs).start()
        AccessChecks(soak, self.settings, connector, self.commands, jobs).start()
        Cycles(soak, connector, self.by_run).start()
        Readers(soak, connector).start()
        Strangers(soak, connector).start()
        Reloads(soak, self.settings, connector, self.commands, self.receivers, self.daemon.process.pid).start()
        self.watch.start()

    def live(self) -> None:
        """Until the time is over, or the daemon is."""
        told = time.time()
        while self.soak.share < 1 and self.daemon.status is None:
            time.sleep(0.5)
            if time.time() - told >= PROGRESS_SECONDS:
                told += PROGRESS_SECONDS
                print(self.progress(), flush=True)
        if self.daemon.status is not None:
            self.soak.found("end", *judge.of_end(judge.End(asked=False, status=self.daemon.status)))

    def progress(self) -> str:
        tally = self.soak.tally
        with contextlib.closing(watching.open_ledger(self.settings)) as ledger:
            states = ledger.execute("SELECT count(*), total(state = 'live') FROM runs").fetchone()
            decisions = ledger.execute("SELECT kind, count(*) FROM decisions GROUP BY 1 ORDER BY 2 DESC").fetchall()
        newest = self.watch.samples[-1] if self.watch.samples else None
        kinds = " ".join(f"{kind} {count}" for kind, count in decisions)
        return (
            f"{self.soak.now / 60:5.1f} min: runs {states[1]:.0f} live {states[0] - states[1]:.0f} ended; "
            f"steps {tally['steps']}; leases {tally['leases']}; decisions: {kinds or 'none'}; "
            f"RSS {newest.rss_kib // 1024 if newest else 0} MiB; descriptors {newest.descriptors if newest else 0}; "
            f"complaints {len(self.soak.findings)}"
        )

    def come_to_rest(self) -> None:
        """Clients go, then the daemon is asked to end; what it left is looked at."""
        soak = self.soak
        soak.stopping.set()
        until = time.time() + 30
        for thread in soak.threads:
            thread.join(max(0.1, until - time.time()))
            if thread.is_alive():
                soak.found("program", f"the worker {thread.name} did not end")
        if self.daemon.status is not None:
            return
        self.watch.compare(self.watch.client.get("/metrics").raw.decode())
        self.watch.retention(REST_SLACK_SECONDS)
        self.watch.client.close()
        soak.found("memory", *judge.of_memory(self.watch.samples))
        time.sleep(soak.times.idle + 2)
        assert self.before is not None
        soak.found("rest", *judge.of_rest(self.before, self.watch.sample()))
        soak.draining.set()
        soak.found("end", *judge.of_end(self.daemon.stop(self.ask_while_it_drains)))

    def ask_while_it_drains(self) -> None:
        """Not ready, no leases, and all else is answered."""
        reader = self.connector.client("reader", "after SIGTERM")
        verifier = self.connector.client("verifier", "after SIGTERM")
        reader.get("/readyz", expect=(503,))
        body = {"verifier": "late", "fingerprint": FINGERPRINT}
        verifier.post("/v1/leases?wait=30s", body, expect=(503,))
        reader.get("/v1/runs")
        reader.close()
        verifier.close()

    def look_back(self) -> None:
        """What is left when the daemon has ended."""
        soak = self.soak
        self.commands.local("ledger", "check", "--ledger", "ledger.sqlite", timeout=300)
        self.commands.local("audit", "verify", "--ledger", "ledger.sqlite", timeout=300)
        with contextlib.closing(judge_ledger.open_read_only(self.settings.path("ledger.sqlite"))) as ledger:
            soak.found("ledger", *judge_ledger.of_ledger(ledger))
        self.receivers.judge()
        self.receivers.write(self.settings.path("messages.jsonl"))
        watching.judge_log(soak, self.settings)

    def summary(self) -> dict[str, Any]:
        soak, watch, tally = self.soak, self.watch, self.soak.tally
        return {
            "seed": soak.seed,
            "duration_seconds": round(soak.now, 1),
            "requests": tally["requests"],
            "steps": tally["steps"],
            "leases": tally["leases"],
            "overrides": tally["overrides"],
            "commands": tally["commands"],
            "reloads_good": tally["reloads good"],
            "reloads_bad": tally["reloads bad"],
            "certificates": tally["certificates"],
            "tokens": tally["tokens"],
            "messages": tally.of("messages "),
            "stream_events": tally["stream events"],
            "runs": tally.of("runs "),
            "restarts_out_of_holds": tally["restarts out of a hold"],
            "directives_applied": tally.of("applied "),
            "rss_kib": {f"{share:.0%}": watch.rss_at(share) for share in (0.25, 0.5, 0.75, 1.0)},
            "descriptors_max": max((sample.descriptors for sample in watch.samples), default=0),
            "threads_max": max((sample.threads for sample in watch.samples), default=0),
            "ledger_bytes_max": watch.ledger_bytes,
            "wal_bytes_max": watch.wal_bytes,
            "metrics_seconds_max": round(watch.metrics_seconds_max, 3),
            "runs_compared_with_metrics": watch.compared,
            "answers": tally.of("answer "),
            "findings": soak.findings.lines(),
        }


def play(soak: Soak) -> dict[str, Any]:
    world = World(soak)
    try:
        world.begin()
        world.live()
        world.come_to_rest()
        world.look_back()
    finally:
        soak.stopping.set()
        world.daemon.kill()
        world.settings.nobody.close()
    return world.summary()


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the daemon is ended on the way out
    made = arguments.folder is None
    folder = Path(tempfile.mkdtemp(prefix="gnomon-soak-")) if made else arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    programs = folder / "bin"  # copies: a build beside may link them anew
    programs.mkdir()
    for name in ("gnomond", "gnomon", "gnomon-admin", "gnomon-lab"):
        shutil.copy2(arguments.bin / name, programs / name)
    print(f"a soak of {arguments.minutes:g} minutes with seed {arguments.seed} in {folder}", flush=True)
    soak = Soak(folder, programs, 60 * arguments.minutes, arguments.seed)
    summary = play(soak)
    (folder / "soak.json").write_text(json.dumps(summary, indent=1) + "\n")
    for line in summary["findings"]:
        print(line)
    counts = {name: summary[name] for name in ("requests", "leases", "overrides", "commands", "certificates")}
    print("; ".join(f"{name} {count}" for name, count in counts.items()))
    if not summary["findings"]:
        print("nothing was found")
    if made and not arguments.keep and not summary["findings"]:
        shutil.rmtree(folder)
    else:
        print(f"what is left is in {folder} (soak.json, gnomond.log, ledger.sqlite)")
    return 1 if summary["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
