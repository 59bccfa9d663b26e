"""What the README shows can be run: names exist, files are read, results pass."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest
from test_verify import task

import gnomon
from gnomon.command_verifier import CommandOptions, read_result

README = (pathlib.Path(__file__).resolve().parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_python_of_the_readme_uses_names_that_exist() -> None:
    names = set(re.findall(r"gnomon\.([A-Za-z_]+)", "\n".join(blocks("python"))))
    names |= set(re.findall(r"`gnomon\.([A-Za-z]+)`", README)) - {"torch"}
    assert {"init", "verifier", "ReplayStep", "Unsupported"} <= names
    assert [name for name in sorted(names) if not hasattr(gnomon, name)] == []
    for block in blocks("python"):
        ast.parse(block)


def test_the_attributes_of_run_and_task_exist() -> None:
    text = "\n".join(blocks("python")) + " ".join(re.findall(r"`[^`]*`", README))
    run = gnomon.init(project="x", name="y", sites=["a"], plan="\n", mode="disabled")
    for name in set(re.findall(r"\brun\.([a-z_]+)", text)):
        assert hasattr(run, name), name
    for name in set(re.findall(r"\btask\.([a-z_]+)", text)):
        assert hasattr(task(), name), name


def test_the_files_of_the_readme_are_read(tmp_path: pathlib.Path) -> None:
    plan, command = blocks("toml")
    assert gnomon.PrecisionPlan.parse(plan).gemm("lm_head", "fprop").fp8
    (tmp_path / "replay.toml").write_text(command)
    assert CommandOptions.load(tmp_path / "replay.toml").arms == ["bf16", "same"]


@pytest.mark.parametrize("text", blocks("json"))
def test_the_result_of_the_readme_is_read(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    result = read_result(str(tmp_path / "result.json"), task(window=7))
    assert result.gap_error == 0.0004
