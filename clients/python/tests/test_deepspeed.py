"""A DeepSpeed engine over PlanLinear layers: one process on the CPU, under a real gnomond."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch")
if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("needs pip install deepspeed", allow_module_level=True)

from daemon import Daemon

SITES = ["layers.0", "layers.2"]


def train(url: str, folder: pathlib.Path, stage: int) -> None:
    """The job, in a process of its own: what it has seen goes to result.json."""
    import deepspeed
    import torch
    from torch import nn

    import gnomon
    from gnomon.torch import adopt, plan_sites, set_plan, weights_hash

    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"layers": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))}
    )
    model.forward = model["layers"].forward  # type: ignore[method-assign,assignment,unused-ignore]
    plan = gnomon.PrecisionPlan.fp8()
    sites = adopt(model, plan)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": 4,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
        },
    )
    hashes: dict[int, str] = {}

    def load(rollback: gnomon.Rollback) -> None:
        path = pathlib.Path(rollback.checkpoint_uri)
        engine.load_checkpoint(str(path.parent), tag=path.name)

    run = gnomon.init(
        project="test", name="deepspeed", url=url, sites=sites, plan=plan, total_steps=8,
        checkpoint_format="deepspeed", checkpoint_every=2, directory=folder / "runs",
        on_plan=lambda plan: set_plan(engine, plan), on_rollback=load,
    )  # fmt: skip
    base = torch.randn(4, 32)
    while run.newest_step < 8:
        with run.step() as s:
            x = (base * (1 + s.step / 64)).bfloat16()
            s.batch(x)
            loss = engine(x).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
            s.log(loss=loss, grad_norm=engine.get_global_grad_norm())
        assert engine.global_steps == s.step
        if s.step % 2 == 0:
            engine.save_checkpoint(str(folder / "checkpoints"), tag=f"step-{s.step}")
            run.checkpoint(folder / "checkpoints" / f"step-{s.step}")
            hashes[s.step] = weights_hash(engine)
    load(gnomon.Rollback(4, str(folder / "checkpoints" / "step-4"), plan))
    result = {
        "sites": list(plan_sites(engine)),
        "loaded": engine.global_steps,
        "same": weights_hash(engine) == hashes[4] != hashes[8],
    }
    (folder / "result.json").write_text(json.dumps(result))
    run.finish()


@pytest.mark.parametrize("stage", [0, 2])
def test_an_engine_is_reported_and_its_checkpoint_loads(
    stage: int, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    paths = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1] / "src")]
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29700 + stage)}
    text = "import pathlib, sys, test_deepspeed as t; "
    text += "t.train(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]))"
    command = [sys.executable, "-c", text, daemon.url, str(tmp_path), str(stage)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    steps = daemon.get("/v1/runs/run-1/steps")
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(step["grad_norm"] > 0 and step["batch_hash"] for step in steps)
    checkpoints = daemon.get("/v1/runs/run-1/checkpoints")
    assert [each["step"] for each in checkpoints] == [2, 4, 6, 8]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result == {"sites": SITES, "loaded": 4, "same": True}
