"""The whole loop: a plain trainer, two Python verifiers, a fault that FP8 alone has."""

from __future__ import annotations

import difflib
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from daemon import Daemon, wait_for

TESTS = pathlib.Path(__file__).parent
PLAN = 'version = 1\n[[rule]]\nmatch = "*"\ngemms = "fp8"\nrecipe = "current"\n'


def test_supervision_adds_at_most_12_lines() -> None:
    before, after = (
        [line.strip() for line in (TESTS / "nano" / name).read_text().splitlines()]
        for name in ("train.py", "train_supervised.py")
    )
    changes = list(difflib.unified_diff(before[1:], after[1:], n=0, lineterm=""))[2:]
    added = [line for line in changes if line.startswith("+")]
    assert len(added) <= 12, added


@contextmanager
def running(daemon: Daemon, folder: pathlib.Path, *trainer: str) -> Iterator[Any]:
    """The trainer, with two verifiers beside it."""
    (folder / "plan.toml").write_text(PLAN)
    environment = {**os.environ, "GNOMON_URL": daemon.url, "PYTHONPATH": str(TESTS)}
    processes = []

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-m", *arguments]
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        processes.append(process)
        return process

    try:
        for name in ("verifier-1", "verifier-2"):
            start(name, "gnomon.verify_program", "nano.replay:replay", "--name", name)
        yield start("trainer", "nano.train_supervised", *trainer)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)
        for path in sorted(folder.glob("*.log")):
            print(f"--- {path.name}\n{path.read_text()[-3000:]}")


def test_a_trainer_that_is_killed_goes_on_and_its_windows_are_verified(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    with running(daemon, tmp_path, "--max-iters", "100000", "--pace", "0.02") as trainer:
        wait_for(lambda: len(daemon.get("/v1/runs/run-1/steps")) >= 25, 30, "25 steps")
        trainer.kill()
        trainer.wait()
        resumed = subprocess.Popen(
            [*trainer.args, "--resume"],
            cwd=tmp_path,
            env={**os.environ, "GNOMON_URL": daemon.url, "PYTHONPATH": str(TESTS)},
        )
        try:
            wait_for(
                lambda: [
                    row
                    for row in daemon.get("/v1/runs/run-1/windows")
                    if row["attempt"] == 2 and row["state"] == "quiet"
                ],
                60,
                "a quiet window of the second attempt",
            )
        finally:
            resumed.terminate()
            resumed.wait()
    attempts = daemon.get("/v1/runs/run-1")["attempts"]
    assert [it["cause"] for it in attempts] == ["start", "restart"]
    assert attempts[1]["base_step"] >= 20
    assert not list(tmp_path.glob("gnomon/fp8/spool/refused*"))


def test_a_fault_of_fp8_alone_is_caught_pinned_recovered_from_and_left(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    site = "model.layers.1.mlp.up_proj"
    arguments = ("--max-iters", "100000", "--fault-site", site, "--fault-steps", "121", "200")
    with running(daemon, tmp_path, *arguments, "--pace", "0.03"):

        def windows(state: str) -> list[dict[str, Any]]:
            rows = daemon.get("/v1/runs/run-1/windows")
            return [row for row in rows if row["state"] == state and row["kind"] == "shadow"]

        def applied(kind: str) -> list[dict[str, Any]]:
            rows = daemon.get("/v1/runs/run-1/directives")
            return [row for row in rows if row["state"] == "applied" and row["kind"] == kind]

        wait_for(lambda: len(windows("quiet")) >= 2, 60, "the first complete windows")
        alarm = wait_for(lambda: windows("alarm"), 120, "the alarm")[0]
        assert alarm["start_step"] + alarm["steps"] > 120
        assert alarm["d_percent"] > 1

        pin = wait_for(lambda: applied("rollback"), 120, "the rollback into the pin")[0]
        version = pin["plan_version"]
        layers = daemon.get(f"/v1/runs/run-1/layers?plan_version={version}")
        assert site in {row["site"] for row in layers if row["fprop"] == "bf16"}
        shown = "/v1/runs/run-1"  # the answer comes before the attempt
        wait_for(lambda: daemon.get(shown)["attempts"][-1]["cause"] == "rollback", 10)
        wait_for(
            lambda: [row for row in windows("quiet") if row["plan_version"] == version],
            120,
            "a quiet window under the pin",
        )

        back = wait_for(lambda: applied("set_plan"), 120, "the way back to FP8")[0]
        layers = daemon.get(f"/v1/runs/run-1/layers?plan_version={back['plan_version']}")
        assert all(row["fprop"] == "fp8" for row in layers)
        after = f"/v1/runs/run-1/steps?from={back['applied_step'] + 1}"
        steps = wait_for(lambda: daemon.get(after), 30, "steps in FP8 again")
        assert {row["plan_version"] for row in steps} == {back["plan_version"]}
        assert [row["kind"] for row in daemon.get("/v1/runs/run-1/notices")] == []
