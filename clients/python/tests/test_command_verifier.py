"""The verifier that runs an operator's command for each replay."""

from __future__ import annotations

import math
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import pytest
from daemon import CHECKOUT
from test_verify import run_windows, task
from trainer import Trainer

import gnomon
from gnomon.command_verifier import CommandOptions, CommandReplayer
from gnomon.verify import ReplayFailed

SCRIPT = CHECKOUT / "clients" / "python" / "tests" / "command_replay.py"
ARGUMENTS = ["{checkpoint}", "{first_step}", "{steps}", "{arm}", "{plan}", "{out}"]


def replayer(folder: pathlib.Path, how: str = "", **members: Any) -> CommandReplayer:
    argv = [sys.executable, str(SCRIPT), *ARGUMENTS, how]
    given = {"argv": argv, "log_directory": str(folder / "logs"), "timeout_seconds": 20.0}
    roots = members.pop("roots", ())
    return CommandReplayer(CommandOptions(**{**given, **members}), roots)


def test_a_command_replays_and_its_log_is_kept(tmp_path: pathlib.Path) -> None:
    result = replayer(tmp_path).replay(task())
    assert [step.step for step in result.steps] == [11, 12, 13, 14]
    assert result.steps[0].batch_hash == "ab"
    assert result.gap_error == 0.01
    assert result.run_end_loss_bf16 is not None
    assert math.isnan(result.run_end_loss_bf16)
    log = (tmp_path / "logs" / "run-1-replay-3.log").read_text()
    assert "replaying bf16 from /ck-10" in log


@pytest.mark.parametrize(
    ("how", "wrong"),
    [
        ("fails", r"ended with status 3: .*no such shard: 7"),
        ("says nothing", r"the command wrote no result to \{out\}"),
        ("no json", r"the result is no JSON"),
        ("other window", r"the result is of window 99; the replay is of window 2"),
        ("typing error", r"a member 'replay_end_los'; expected steps, replay_end_loss_bf16"),
        ("wrong type", r'gap_error: "small" not accepted'),
    ],
)
def test_what_a_command_does_wrong_is_said(tmp_path: pathlib.Path, how: str, wrong: str) -> None:
    with pytest.raises(ReplayFailed, match=f"(?s){wrong}"):
        replayer(tmp_path, how).replay(task())


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: pathlib.Path) -> None:
    begun = time.monotonic()
    with pytest.raises(ReplayFailed, match=r"still running after 0.5 s .*timeout_seconds"):
        replayer(tmp_path, "hangs", timeout_seconds=0.5).replay(task())
    assert time.monotonic() - begun < 10
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    mine = [line for line in running.stdout.splitlines() if str(tmp_path) in line]
    assert mine == []


def test_the_limits_hold(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ReplayFailed, match=r"(?s)ended with status 1.*MemoryError"):
        replayer(tmp_path, "eats", memory_bytes_max=1 << 30).replay(task())
    with pytest.raises(ReplayFailed, match=r"File too large|file_bytes_max"):
        replayer(tmp_path, "writes", file_bytes_max=1 << 20).replay(task())


def test_status_69_and_another_arm_are_unsupported(tmp_path: pathlib.Path) -> None:
    with pytest.raises(gnomon.Unsupported, match="this build has no fakequant"):
        replayer(tmp_path, "cannot").replay(task())
    with pytest.raises(gnomon.Unsupported, match="arm same; this verifier does bf16"):
        replayer(tmp_path, arms=["bf16"]).replay(task(arm="same"))


def test_a_lease_that_is_lost_ends_the_command(tmp_path: pathlib.Path) -> None:
    begun = time.monotonic()

    def check() -> None:
        if time.monotonic() - begun > 0.5:
            raise gnomon.LeaseLost("lost")

    with pytest.raises(gnomon.LeaseLost):
        replayer(tmp_path, "hangs").replay(task(_check=check))
    assert time.monotonic() - begun < 10


def test_the_plan_is_a_file_and_bf16_is_a_plan(tmp_path: pathlib.Path) -> None:
    plan = gnomon.PrecisionPlan.fp8("block")
    for its, said in ((task(arm="plan", plan=plan), 'recipe = "block"'), (task(), "version = 0")):
        with pytest.raises(ReplayFailed, match=f"(?s)status 4.*{said}"):
            replayer(tmp_path, "plan").replay(its)
    with pytest.raises(ReplayFailed, match="no plan"):
        replayer(tmp_path, "plan").replay(task(arm="same"))


@pytest.mark.parametrize("uri", ["--help", "-rf", "relative/path", "", "/a\nb", "$(touch x)"])
def test_a_checkpoint_that_could_be_an_option_is_refused(tmp_path: pathlib.Path, uri: str) -> None:
    with pytest.raises(ReplayFailed, match="expected an absolute path or a URI"):
        replayer(tmp_path).replay(task(checkpoint=uri))


def test_nothing_becomes_a_shell_s_word(tmp_path: pathlib.Path) -> None:
    uri = f"/tmp/$(touch {tmp_path}/x); touch {tmp_path}/y {{arm}}"
    replayer(tmp_path).replay(task(checkpoint=uri))
    assert f"from {uri} plan" in (tmp_path / "logs" / "run-1-replay-3.log").read_text()
    assert sorted(os.listdir(tmp_path)) == ["logs"]


def test_roots_bound_what_is_read(tmp_path: pathlib.Path) -> None:
    inside = tmp_path / "runs" / "ck"
    its = task(checkpoint=str(inside), end_checkpoint="")
    replayer(tmp_path, roots=[str(tmp_path / "runs")]).replay(its)
    for uri in (f"{tmp_path}/runs/../other", f"{tmp_path}/runs2/ck", "/etc/passwd"):
        with pytest.raises(ReplayFailed, match="not below a folder that this verifier may read"):
            replayer(tmp_path, roots=[str(tmp_path / "runs")]).replay(task(checkpoint=uri))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", r"a file with \[command\]"),
        ("[command]\nargv = 3", "argv: 3 not accepted; expected an array"),
        ("[command]\nargv = []", "a program and its arguments"),
        ("[command]\nargv = ['{checkpoint}', '{out}']", "the program is no placeholder"),
        ("[command]\nargv = ['a', '{checkpoint}']", r"expected \{out\} in an argument"),
        ("[command]\nargv = ['a', '{chekpoint}', '{out}']", r"\{chekpoint\} not accepted"),
        ("[command]\nargv = ['a', '{checkpoint}{out}']\ntimeout = 3", "command.timeout: an unkn"),
        ("[command]\nargv = ['a', '{checkpoint}{out}']\ntimeout_seconds = 0", "more than 0"),
        ("[command", "a file with"),
    ],
)
def test_a_wrong_file_is_one_error(tmp_path: pathlib.Path, text: str, wrong: str) -> None:
    file = tmp_path / "replay.toml"
    file.write_text(text)
    with pytest.raises(gnomon.ConfigError, match=wrong):
        CommandOptions.load(file)


def test_the_program_runs_the_command(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    run_windows(trainer, tmp_path)
    argv = ", ".join(f'"{each}"' for each in (sys.executable, SCRIPT, *ARGUMENTS, ""))
    (tmp_path / "replay.toml").write_text(f'[command]\nargv = [{argv}]\narms = ["bf16"]\n')
    command = [sys.executable, "-m", "gnomon.verify_program", "--command", "replay.toml"]
    controller = ["--controller", trainer.daemon.url, "--name", "c1", "--once"]
    subprocess.run([*command, *controller], cwd=tmp_path, check=True, timeout=60)
    rows = trainer.daemon.get("/v1/runs/run-1/replays")
    (row,) = [row for row in rows if row["state"] == "done"]
    assert (row["verifier"], row["gap_error"]) == ("c1", 0.01)
