"""Two ranks on this machine's CPU, by gloo: the shadow under DDP and FSDP2, and plans."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

import torch
from daemon import Daemon, wait_for

from gnomon.plan import PrecisionPlan

HERE = pathlib.Path(__file__).parent


def start_ranks(program: str, tmp_path: pathlib.Path, *arguments: str) -> list[Any]:
    """Two processes: `program` RANK 2 STORE_FILE ARGUMENTS."""
    return [
        subprocess.Popen(
            [
                sys.executable,
                str(HERE / program),
                str(rank),
                "2",
                str(tmp_path / "store"),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        for rank in range(2)
    ]


def outputs_of(ranks: list[Any]) -> list[Any]:
    """What each printed, as JSON."""
    try:
        outputs = [each.communicate(timeout=120) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    for each, (_, errors) in zip(ranks, outputs, strict=True):
        assert each.returncode == 0, errors[-3000:]
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_ranks_measure_together_and_keep_their_bits(mode: str, tmp_path: pathlib.Path) -> None:
    if mode == "fsdp2" and int(torch.__version__.split(".")[1]) < 15:
        pytest.skip("FSDP2 on the CPU was tried with PyTorch 2.15; that of 2.6 needs a GPU")
    first, second = outputs_of(start_ranks("torch_rank_program.py", tmp_path, mode))
    for alone, shadowed in (first, second):
        assert shadowed["weights"] == alone["weights"]
        assert shadowed["reproduces"] == [True, True, True]
        healthy, *sick = shadowed["gaps"]
        assert abs(healthy) < 0.3
        assert all(gap > 0.5 for gap in sick)
    # Every rank has the same windows, and losses that are means over both.
    assert first[1]["gaps"] == second[1]["gaps"]
    assert first[1]["weights"] == second[1]["weights"]
    assert first[0]["losses"] != second[0]["losses"]
    means = [(a + b) / 2 for a, b in zip(first[0]["losses"], second[0]["losses"], strict=True)]
    assert first[1]["losses"] == second[1]["losses"] == means
    steps = [loss for window in first[1]["steps"] for loss in window]
    assert steps == pytest.approx(means, rel=1e-12)


def test_a_plan_takes_effect_at_the_same_step_on_all_ranks(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    ranks = start_ranks("torch_rank_run.py", tmp_path, daemon.url, str(tmp_path / "runs"), "none")
    pin(daemon)
    first, second = outputs_of(ranks)
    assert first["end"] == second["end"] == "the plan came"
    assert first["in_fp8"] == second["in_fp8"]
    assert first["in_fp8"][:2] == [True, True]
    assert (first["id"], second["id"]) == ("run-1", None)  # rank 0 alone speaks
    steps = daemon.get("/v1/runs/run-1/steps")
    assert len(steps) == len(first["in_fp8"])


def test_a_rank_that_rejects_a_plan_is_one_clear_error(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    ranks = start_ranks("torch_rank_run.py", tmp_path, daemon.url, str(tmp_path / "runs"), "1")
    try:
        pin(daemon)
        output, errors = ranks[1].communicate(timeout=60)
        assert ranks[1].returncode == 3, errors[-3000:]
        error = json.loads(output)
        assert "(set_plan) is accepted on rank 0 and rejected (not on this rank) on rank 1" in error
        assert "newest checkpoint" in error
        assert ranks[0].wait(timeout=60) != 0  # it cannot go on alone
    finally:
        for each in ranks:
            each.kill()


def pin(daemon: Daemon) -> None:
    """A person's order, once two steps are there."""
    wait_for(lambda: daemon.get("/v1/runs") and daemon.get("/v1/runs/run-1/steps")[1:], 60)
    plan = PrecisionPlan.fp8().with_bf16_sites(["layers.1.down_proj"])
    daemon.override("set_plan", plan=plan.to_toml(), expires_seconds=600)
