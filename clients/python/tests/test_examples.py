"""The examples, each run as its README says, under a real gnomond."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

import example_with_fault
import te_debug
from daemon import Daemon, wait_for

FAULT = "example_with_fault.py"
EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def start(example: str, script: str, folder: pathlib.Path, url: str, *arguments: str) -> Any:
    """A program of an example, with its log in `folder`."""
    folders = (EXAMPLES / example, EXAMPLES.parent / "src", EXAMPLES.parent / "tests")
    path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "GNOMON_URL": url, "PYTHONPATH": path}
    command = [sys.executable, str(EXAMPLES / example / script), *arguments]
    if script == "gnomon-verify":
        command = [sys.executable, "-m", "gnomon.verify_program", *arguments]
    if script == FAULT:
        command = [sys.executable, example_with_fault.__file__, *arguments]
    with open(folder / f"{script}.log", "wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def test_supervision_adds_at_most_12_lines_to_a_loop_of_nanogpts_shape() -> None:
    before, after = (
        [line.strip() for line in (EXAMPLES / "plain_pytorch" / name).read_text().splitlines()]
        for name in ("train.py", "train_supervised.py")
    )
    lines = [line for line in difflib.ndiff(before[1:], after[1:]) if line.startswith("+ ")]
    added = [line for line in lines if line.strip() != "+"]
    assert len(added) <= 12, added


@pytest.mark.parametrize("example", ["transformers", "lightning", "torchao"])
def test_an_example_runs_to_its_end(example: str, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    if importlib.util.find_spec(example) is None:
        pytest.skip(f"needs {example}: pip install {example}")
    process = start(example, "train.py", tmp_path, daemon.url, "--max_steps", "40")
    status = process.wait(timeout=240)
    assert status == 0, (tmp_path / "train.py.log").read_text()[-4000:]
    (run,) = daemon.get("/v1/runs")
    assert run["state"] == "completed"
    steps = daemon.get("/v1/runs/run-1/steps")
    assert [step["step"] for step in steps] == list(range(1, 41))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(step["batch_hash"] for step in steps)
    assert [each["step"] for each in daemon.get("/v1/runs/run-1/checkpoints")] == [20, 40]


def test_the_plain_loop_that_was_killed_goes_on(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (tmp_path / "plan.toml").write_text((EXAMPLES / "plain_pytorch" / "plan.toml").read_text())

    def start_until(condition: Any) -> None:
        script = ("plain_pytorch", "train_supervised.py", tmp_path, daemon.url)
        process = start(*script, "--max_iters", "100000")
        try:
            wait_for(lambda: condition() or process.poll() is not None, 120)
            assert process.poll() is None, (tmp_path / "train_supervised.py.log").read_text()
        finally:
            process.kill()
            process.wait()

    def last() -> dict[str, Any]:
        rows = daemon.get("/v1/runs/run-1/steps") if daemon.get("/v1/runs") else []
        return rows[-1] if rows else {"attempt": 0, "step": 0}

    start_until(lambda: last()["step"] > 20)
    base = json.loads((tmp_path / "gnomon" / "fp8" / "state.json").read_text())["checkpoints"][-1]
    start_until(lambda: last()["attempt"] == 2 and last()["step"] > base["step"] + 10)
    attempts = daemon.get("/v1/runs/run-1")["attempts"]
    found = [(each["cause"], each["base_step"]) for each in attempts]
    assert found == [("start", 0), ("restart", base["step"])]


def test_the_plain_loop_is_verified_rolled_back_and_pinned(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    """With the fault of `example_with_fault.py` at one layer from step 121 on."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "plan.toml").write_text((EXAMPLES / "plain_pytorch" / "plan.toml").read_text())
    loop = str(EXAMPLES / "plain_pytorch" / "train_supervised.py")
    verifier = f"{example_with_fault.__name__}:verifier"
    processes = [start("plain_pytorch", FAULT, folder, daemon.url, loop, "--max_iters", "100000")]
    for name in ("verifier-1", "verifier-2"):
        options = (verifier, "--name", name)
        processes += [start("plain_pytorch", "gnomon-verify", folder, daemon.url, *options)]

    def windows(state: str) -> list[Any]:
        rows = daemon.get("/v1/runs/run-1/windows")
        return [row for row in rows if row["state"] == state and row["kind"] == "shadow"]

    def rollbacks() -> list[Any]:
        rows = daemon.get("/v1/runs/run-1/directives")
        return [row for row in rows if row["kind"] == "rollback" and row["state"] == "applied"]

    try:
        wait_for(lambda: daemon.get("/v1/runs"), 60, "the run")
        wait_for(lambda: windows("quiet"), 60, "a verified window")
        alarm = wait_for(lambda: windows("alarm"), 120, "the alarm")[0]
        assert alarm["start_step"] + alarm["steps"] >= example_with_fault.FIRST_STEP
        rollback = wait_for(rollbacks, 120, "the rollback")[0]
        version, since = rollback["plan_version"], rollback["to_step"]
        layers = daemon.get(f"/v1/runs/run-1/layers?plan_version={version}")
        pinned = {row["site"] for row in layers if row["fprop"] == "bf16"}
        assert example_with_fault.SITE in pinned
        steps = f"/v1/runs/run-1/steps?from={since + 1}"
        again = wait_for(
            lambda: [row for row in daemon.get(steps) if row["plan_version"] == version],
            60,
            "steps under the pin",
        )
        assert again[0]["step"] == since + 1
        assert again[0]["attempt"] == 2
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=30)
        for path in sorted(folder.glob("*.log")):
            print(f"--- {path.name}\n{path.read_text()[-3000:]}")


def test_the_transformer_engine_example_calls_what_is_there() -> None:
    """It needs a GPU and is not run; its calls are held against TransformerEngine's text."""
    tree = ast.parse((EXAMPLES / "transformer_engine" / "train.py").read_text())
    calls = {
        ast.unparse(node.func): {each.arg for each in node.keywords}
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    }
    for name, file in (("LayerNormMLP", "module/layernorm_mlp.py"), ("Linear", "module/linear.py")):
        text = (te_debug.root() / "pytorch" / file).read_text()
        found = next(
            each
            for each in ast.walk(ast.parse(text))
            if isinstance(each, ast.ClassDef) and each.name == name
        )
        init = next(
            each
            for each in found.body
            if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        )
        assert calls[f"te.{name}"] <= {each.arg for each in init.args.args}
    text = (te_debug.root() / "pytorch" / "quantization.py").read_text()
    autocast = next(
        each
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == "autocast"
    )
    assert calls["te.autocast"]
    names = ast.unparse(autocast)
    assert all(f"{name}: " in names for name in calls["te.autocast"])
