"""The shadow under DDP and FSDP2: two ranks on this machine's CPU, by gloo."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

PROGRAM = pathlib.Path(__file__).with_name("torch_rank_program.py")


def run_ranks(mode: str, tmp_path: pathlib.Path) -> list[Any]:
    """What each of two ranks printed: [without a shadow, with one]."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), mode, str(rank), "2", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [each.communicate(timeout=240) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    for each, (_, errors) in zip(ranks, outputs, strict=True):
        assert each.returncode == 0, errors[-3000:]
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.parametrize("mode", ["ddp", "fsdp2"])
def test_ranks_measure_together_and_keep_their_bits(mode: str, tmp_path: pathlib.Path) -> None:
    first, second = run_ranks(mode, tmp_path)
    for alone, shadowed in (first, second):
        assert shadowed["losses"] == alone["losses"]
        assert shadowed["weights"] == alone["weights"]
        assert shadowed["reproduces"] == [True, True, True]
        healthy, *sick = shadowed["gaps"]
        assert abs(healthy) < 0.3
        assert all(gap > 0.5 for gap in sick)
    # Every rank has the same windows, and losses that are means over both.
    assert first[1]["gaps"] == second[1]["gaps"]
    assert first[1]["weights"] == second[1]["weights"]
    assert first[1]["losses"] != second[1]["losses"]
    means = [(a + b) / 2 for a, b in zip(first[1]["losses"], second[1]["losses"], strict=True)]
    steps = [loss for window in first[1]["steps"] for loss in window]
    assert steps == pytest.approx(means, rel=1e-12)
