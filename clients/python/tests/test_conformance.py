"""The controller's own kit plays the other side: `gnomon conformance trainer` and `verifier`."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time

import pytest
from daemon import BIN, Daemon
from nano.model import SITES, Model, get_batch, save
from trainer import PLAN, Trainer

import gnomon

TESTS = pathlib.Path(__file__).parent


def kit(daemon: Daemon, what: str, *arguments: str) -> subprocess.Popen[str]:
    help_ = subprocess.run([BIN / "gnomon", "--help"], capture_output=True, text=True, check=True)
    if "conformance" not in help_.stdout:
        pytest.skip("this gnomon has no conformance kit")
    command = [str(BIN / "gnomon"), "conformance", what, daemon.url, "--patience", "40"]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)


def require_passed(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=120)
    print(said)
    lines = [line for line in said.splitlines() if line.startswith(("failed", "noted"))]
    assert lines == []
    assert process.returncode == 0


def test_the_trainer_s_side_conforms(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    def take_checkpoint() -> None:
        path = tmp_path / f"step-{run.newest_step}"
        path.touch()
        run.checkpoint(path)

    run = trainer.init(
        framework="toy",
        checkpoint_format="toy",
        checkpoint_every=10,
        tokens_per_step=48,
        total_steps=100_000,
        on_checkpoint=take_checkpoint,
        on_rollback=lambda to: None,
    )
    process = kit(trainer.daemon, "trainer", "--run", "x")
    with run:
        while process.poll() is None or not run._stopped:
            if run.newest_step % 10 == 0:
                take_checkpoint()
            with run.step() as s:
                s.batch(get_batch(s.step))
                time.sleep(0.01)
                s.log(loss=2.0, grad_norm=1.0, learning_rate=1e-3, tokens=48)
    require_passed(process)


def test_the_verifier_s_side_conforms(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    plan = gnomon.PrecisionPlan.parse(PLAN).bind(SITES, 2)
    model = Model()
    model.is_fp8 = lambda site, gemm: plan.gemm(site, gemm).fp8
    paths = []
    for _ in range(2):
        paths.append(str(tmp_path / f"step-{model.step}.json"))
        save(model, paths[-1])
        for _ in range(10):
            tokens = get_batch(model.step + 1)
            _, kept = model.forward(tokens)
            model.update(model.backward(tokens, kept), rate=0.1)
    (tmp_path / "plan.toml").write_text(PLAN)
    verifier = subprocess.Popen(
        [sys.executable, "-m", "gnomon.verify_program", "nano.replay:replay", "--name", "v1"],
        cwd=tmp_path,
        env={**os.environ, "GNOMON_URL": daemon.url, "PYTHONPATH": str(TESTS)},
    )
    try:
        steps = ("--step", "0", "--steps", "10", "--plan", str(tmp_path / "plan.toml"))
        kinds = ("--format", "nano", "--framework", "toy")
        ends = ("--checkpoint", paths[0], "--end-checkpoint", paths[1])
        require_passed(kit(daemon, "verifier", *ends, *steps, *kinds))
    finally:
        verifier.terminate()
        verifier.wait(timeout=30)
