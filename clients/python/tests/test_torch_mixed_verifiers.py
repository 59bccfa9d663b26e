"""Four verifiers of gnomon's own trainer and one of PyTorch's, beside a run of each."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")
pytest.importorskip("transformers", reason="needs pip install 'gnomon-client[transformers]'")

from daemon import BIN, CHECKOUT, Daemon, wait_for

DEMO = CHECKOUT / "examples/demo"
WINDOWS = 6  # quiet ones of each run


def test_no_window_fails(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    if not (BIN / "gnomon-trainer").exists():
        pytest.skip(f"there is no gnomon-trainer in {BIN}: build it")
    text = tmp_path / "text.txt"
    text.write_text("".join(page.read_text() for page in sorted((CHECKOUT / "docs").glob("*.md"))))
    data = tmp_path / "data"
    prepare = ("data", "prepare", "--input", text, "--out", data, "--tokenizer", "bytes")
    subprocess.run([BIN / "gnomon", *prepare], check=True)
    config = tmp_path / "run.toml"
    config.write_text((DEMO / "trainer-small.toml").read_text().replace("@DATA@", str(data)))

    path = os.pathsep.join([str(CHECKOUT / "clients/python/src"), str(DEMO / "pytorch")])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([path, os.environ.get("PYTHONPATH", "")]),
        "GNOMON_DEMO_TEXT": str(text),
        "GNOMON_DEMO_FAULT": "none",
        "GNOMON_URL": daemon.url,
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    processes = []

    def start(name: str, *command: Any) -> subprocess.Popen[bytes]:
        with open(tmp_path / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                [*map(str, command)], cwd=tmp_path, env=environment, stdout=log, stderr=log
            )
        processes.append(process)
        return process

    def rows(run: str, what: str, state: str) -> list[dict[str, Any]]:
        return [row for row in daemon.get(f"/v1/runs/{run}/{what}") if row["state"] == state]

    def has_windows(run: str) -> bool:
        return len(rows(run, "windows", "quiet")) >= WINDOWS

    def both_runs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = daemon.get("/v1/runs")
        return found if len(found) == 2 else []

    try:
        for i in range(4):
            own = ("--controller", daemon.url, "--threads", "1", "--name", f"own-{i}")
            start(f"own-{i}", BIN / "gnomon-verifier", *own)
        python = (sys.executable, "-m", "gnomon.verify_program", "job:verifier")
        start("python", *python, "--name", "python")
        trainer = (BIN / "gnomon-trainer", "--config", config, "--dir", tmp_path / "run")
        start("trainer", *trainer, "--controller", daemon.url)
        train = (sys.executable, DEMO / "pytorch/train.py", "--url", daemon.url)
        start("pytorch", *train, "--dir", tmp_path / "runs")
        runs = wait_for(both_runs, 60, "runs")
        for run in runs:
            wait_for(partial(has_windows, run["run"]), 240, run["run"])
        for run in runs:
            assert rows(run["run"], "replays", "failed") == []
            assert rows(run["run"], "windows", "failed") == []
            assert rows(run["run"], "windows", "alarm") == []
        shown = [daemon.get(f"/v1/runs/{run['run']}")["registration"] for run in runs]
        assert {registration["framework"] for registration in shown} == {"gnomon", "pytorch"}
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=60)
        for log in sorted(tmp_path.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-2000:]}")
