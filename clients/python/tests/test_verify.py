"""What a verifier makes of good and bad replay functions."""

from __future__ import annotations

import dataclasses
import logging
import math
import pathlib
import re
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import replays
from daemon import CHECKOUT, wait_for
from trainer import Trainer

import gnomon
from gnomon.connection import ClientOptions, Connection
from gnomon.lease_loop import FunctionReplayer, LeaseLoop, LoopOptions, call_verifier
from gnomon.leases import LeaseClient
from gnomon.replay_check import check_result
from gnomon.replay_process import ProcessReplayer, load_verifier
from gnomon.run import Run
from gnomon.verify import ReplayFailed, Verifier

LOG = logging.getLogger("gnomon.verify")


def task(**members: Any) -> gnomon.ReplayTask:
    given: dict[str, Any] = {
        "run": "run-1",
        "replay": 3,
        "window": 2,
        "attempt": 1,
        "arm": "bf16",
        "checkpoint": "/ck-10",
        "start_step": 10,
        "steps": 4,
        "end_checkpoint": "/ck-14",
        "evaluate_endpoints": True,
    }
    return gnomon.ReplayTask(**{**given, **members})


def changed(**members: Any) -> gnomon.ReplayResult:
    return dataclasses.replace(replays.result(task()), **members)


def steps(*losses: float, first: int = 11) -> list[gnomon.ReplayStep]:
    return [gnomon.ReplayStep(step=first + i, loss=loss) for i, loss in enumerate(losses)]


TEXT: Any = gnomon.ReplayStep(step=14, loss="2")  # type: ignore[arg-type]


def test_a_good_result_passes() -> None:
    result = replays.result(task())
    assert check_result(task(), result) is result


@pytest.mark.parametrize(
    ("members", "wrong"),
    [
        ({"steps": steps(1, 1, 1, 1, first=31)}, "steps[0] is of step 31; expected step 11"),
        ({"steps": steps(1, 1, 1, 1, 1)}, "the result has 5 steps; window 2 has steps 11 to 14"),
        ({"steps": steps(1, 1)}, "the replay ended after 2 of 4 steps, and they are finite"),
        ({"steps": steps(1, math.nan, 1, 1)}, "step 12 is not finite (loss nan"),
        ({"steps": [1.0, 2.0]}, "steps[0] is float; expected a gnomon.ReplayStep"),
        ({"steps": [*steps(1, 1, 1), TEXT]}, "steps[3].loss is str '2'; expected a float"),
        ({"replay_end_loss_bf16": None}, "replay_end_loss_bf16 is missing"),
        ({"replay_end_loss_bf16": math.nan}, "replay_end_loss_bf16 is nan although the loss of"),
        ({"start_loss_bf16": math.nan}, "start_loss_bf16 is nan although the loss of every step"),
        ({"start_loss_plan": None}, "start_loss_plan is missing; the task has evaluate_endpoints"),
        ({"run_end_loss_bf16": None}, "run_end_loss_bf16 is missing"),
        ({"gap_error": -1.0}, "gap_error is -1.0; expected a finite number from 0 on"),
        ({"gap_error": math.nan}, "gap_error is nan"),
        ({"start_loss_bf16": "2.0"}, "start_loss_bf16 is str '2.0'; expected a float"),
    ],
)
def test_a_result_that_is_not_its_window_s_is_said_to_be(
    members: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(ReplayFailed, match=re.escape(wrong)):
        check_result(task(), changed(**members))


def test_a_replay_that_turns_non_finite_is_a_fact() -> None:
    check_result(task(), changed(steps=steps(1, math.inf), replay_end_loss_bf16=None))
    check_result(task(), changed(run_end_loss_bf16=math.nan))


def test_scores_need_scores() -> None:
    with pytest.raises(ReplayFailed, match="no scores"):
        check_result(task(arm="scores"), changed())


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (replays.raises, r"the replay raised ValueError: no such shard \(replays.py:\d+ in raises"),
        (replays.nothing, "the replay returned NoneType; expected a gnomon.ReplayResult"),
        (replays.becomes_nan, "step 11 is not finite"),
    ],
)
def test_a_function_s_mistake_has_its_place(function: Any, wrong: str) -> None:
    with pytest.raises(ReplayFailed, match=wrong):
        call_verifier(Verifier(function), task())


def test_an_arm_that_was_not_promised_is_unsupported() -> None:
    with pytest.raises(gnomon.Unsupported, match="arm scores; this verifier does bf16, same"):
        call_verifier(replays.good, task(arm="scores"))


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes replayers whose process finds `replays`."""
    monkeypatch.chdir(CHECKOUT / "clients" / "python" / "tests")
    made: list[ProcessReplayer] = []

    def make(name: str, timeout: float = 20.0) -> ProcessReplayer:
        made.append(ProcessReplayer(f"replays:{name}", timeout))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_process_replays_many_times_and_says_what_it_can(process: Any) -> None:
    replayer = process("good")
    assert replayer.abilities().arms == ["bf16", "same"]
    assert replayer.abilities().frameworks == ["toy"]
    done: list[int] = []
    first = replayer._process
    for _ in range(2):
        result = replayer.replay(task(_progress=done.append))
        assert [step.step for step in result.steps] == [11, 12, 13, 14]
        assert result.gap_error == 0.001
    assert done == [1, 2, 3, 4] * 2
    assert replayer._process is first
    assert len(process("plain").replay(task()).steps) == 4


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("raises", r"the replay raised ValueError: no such shard"),
        ("exits", r"process ended with status 3 in the middle of it"),
        ("is_killed", r"process was killed by SIGKILL in the middle of it: out of memory\?"),
        ("leaves", r"process ended with status 1 in the middle of it"),
        ("becomes_nan", r"step 11 is not finite"),
    ],
)
def test_a_process_that_fails_is_reported_and_replaced(process: Any, name: str, wrong: str) -> None:
    replayer = process(name)
    children = []
    for _ in range(2):
        children.append(replayer._process)
        with pytest.raises(ReplayFailed, match=wrong):
            replayer.replay(task())
    first, second = children[0], replayer._process
    assert first.poll() is not None, "what one replay has spoiled does not reach the next"
    assert second is None


def test_a_lease_that_is_lost_as_its_task_arrives_is_not_overlooked(process: Any) -> None:
    def lost() -> None:
        raise gnomon.LeaseLost("lost")

    replayer = process("hangs_politely")
    child = replayer._process
    for _ in range(20):
        with pytest.raises(gnomon.LeaseLost):
            replayer.replay(task(_check=lost))
        assert child.poll() is None


def test_a_function_that_hangs_is_ended(process: Any) -> None:
    replayer = process("hangs", timeout=0.5)
    child = replayer._process
    begun = time.monotonic()
    with pytest.raises(ReplayFailed, match=r"still running after 0.5 s and was ended"):
        replayer.replay(task())
    assert time.monotonic() - begun < 5
    assert child.poll() is not None


def test_unsupported_and_lost_leases_keep_their_kind(process: Any) -> None:
    replayer = process("not_for_me")
    child = replayer._process
    with pytest.raises(gnomon.Unsupported, match="arm fakequant needs a kernel"):
        replayer.replay(task())
    assert child.poll() is None
    begun = time.monotonic()

    def check() -> None:
        if time.monotonic() - begun > 0.5:
            raise gnomon.LeaseLost("lost")

    replayer = process("hangs_politely")
    child = replayer._process
    with pytest.raises(gnomon.LeaseLost):
        replayer.replay(task(_check=check))
    assert child.poll() is None, "a function that calls task.check() keeps its process"


def test_a_function_that_does_not_load_again_is_a_failure(
    process: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """It loaded once: its storage may be away."""
    (tmp_path / "away.py").write_text((CHECKOUT / "clients/python/tests/replays.py").read_text())
    replayer = ProcessReplayer(f"{tmp_path / 'away.py'}:raises", 20.0)
    for wrong in ("no such shard", "function: .*away.py"):
        with pytest.raises(ReplayFailed, match=wrong):
            replayer.replay(task())
        (tmp_path / "away.py").unlink(missing_ok=True)
    replayer.close()


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("replays", "module:function or file.py:function"),
        ("replays:missing", "module:function"),
        ("no_such_module:f", "No module named"),
        ("missing.py:f", "module:function"),
    ],
)
def test_a_function_that_is_not_there_is_one_error(process: Any, target: str, wrong: str) -> None:
    with pytest.raises(gnomon.ConfigError, match=wrong):
        ProcessReplayer(target, 1.0)


def test_a_function_is_found_in_a_file() -> None:
    file = CHECKOUT / "clients" / "python" / "tests" / "replays.py"
    assert load_verifier(f"{file}:good").arms == ("bf16", "same")


def run_windows(trainer: Trainer, folder: pathlib.Path, batch: Any = None) -> Run:
    """A run of 40 steps with a checkpoint each ten: windows that wait to be replayed."""
    run = trainer.init(checkpoint_every=10, checkpoint_format="toy")
    for _ in range(4):
        run.checkpoint(folder / f"step-{run.newest_step}")
        for _ in range(10):
            with run.step(batch=batch) as s:
                s.log(loss=2.0, grad_norm=1.0)
    run.checkpoint(folder / "step-40")
    wait_for(lambda: trainer.daemon.get("/v1/runs/run-1/replays"), 10, "a replay")
    return run


def lease(trainer: Trainer, function: Any) -> LeaseLoop:
    options = LoopOptions(ClientOptions(url=trainer.daemon.url), "v1", {}, True, 2.0)
    verifier = function if isinstance(function, Verifier) else Verifier(function)
    return LeaseLoop(options, FunctionReplayer(verifier), LOG)


def test_a_replay_is_completed_and_its_window_judged(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    def slow(its: gnomon.ReplayTask) -> gnomon.ReplayResult:
        time.sleep(0.2)
        return replays.result(its)

    run_windows(trainer, tmp_path)
    assert lease(trainer, slow).run() == 1
    (row,) = [it for it in trainer.daemon.get("/v1/runs/run-1/replays") if it["state"] == "done"]
    assert row["verifier"] == "v1"
    assert row["replay_end_loss_bf16"] == 2.0
    assert 0.2 <= row["replay_seconds"] < 5, "measured where the function does not say it"


def test_a_function_that_raises_gives_its_reason_to_the_controller(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    run_windows(trainer, tmp_path)
    for _ in range(4):  # the policy's attempts_max
        assert lease(trainer, replays.raises).run() == 0

    def failed() -> list[str]:
        rows = trainer.daemon.get("/v1/runs/run-1/replays")
        return [it["fail_reason"] for it in rows if it["state"] == "failed"]

    assert "the replay raised ValueError: no such shard" in wait_for(failed, 10)[0]


class Waits(threading.Event):
    """Notes how long is waited, and waits not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return self.is_set()


def test_a_replay_that_failed_is_followed_by_a_pause_that_grows(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    calls: list[str] = []

    def fails(its: gnomon.ReplayTask) -> gnomon.ReplayResult:
        calls.append(its.arm)
        if len(calls) == 2:
            return replays.result(its)
        if len(calls) == 5:
            loop.stop()
        raise OSError("the mount is away")

    run_windows(trainer, tmp_path)
    loop = lease(trainer, fails)
    loop._options.once = False
    waits = loop._stopping = Waits()
    loop.run()
    assert len(calls) == 5
    assert [0.5 <= each <= 1 for each in waits.seconds[:2]] == [True, True], "reset by a success"
    assert [1 <= waits.seconds[2] <= 2, 2 <= waits.seconds[3] <= 4] == [True, True]


def test_a_token_that_is_being_replaced_costs_no_replay(
    trainer: Trainer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    ask = LeaseClient.ask

    def taken_away(its: LeaseClient, *arguments: Any) -> Any:
        found = ask(its, *arguments)
        its.connection.close()  # what comes next reads the token anew
        token.unlink()
        return found

    request = Connection.request

    def put_back(its: Connection, *arguments: Any) -> Any:
        try:
            return request(its, *arguments)
        except gnomon.ConnectionFailed:
            token.write_text("second\n")
            raise

    run_windows(trainer, tmp_path)
    loop = lease(trainer, replays.plain)
    client = ClientOptions(url=trainer.daemon.url, token_file=str(token))
    loop = LeaseLoop(dataclasses.replace(loop._options, client=client), loop._replayer, LOG)
    monkeypatch.setattr(LeaseClient, "ask", taken_away)
    monkeypatch.setattr(Connection, "request", put_back)
    assert loop.run() == 1


def test_other_batches_are_said_to_be_the_loader_s_doing(
    trainer: Trainer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    def shuffled(its: gnomon.ReplayTask) -> gnomon.ReplayResult:
        result = replays.result(its)
        for step in result.steps:
            step.batch_hash = gnomon.batch_hash([3, 2, 1])
        return result

    run_windows(trainer, tmp_path, batch=[1, 2, 3])
    assert lease(trainer, shuffled).run() == 1
    assert "the loader does not replay its order" in caplog.text

    def verdicts() -> list[str]:
        lease(trainer, shuffled).run()  # nobody else can be asked: it repeats itself
        return [row["verdict"] for row in trainer.daemon.get("/v1/runs/run-1/decisions")]

    wait_for(lambda: "data_mismatch" in verdicts(), 20)
    assert "alarm" not in [row["state"] for row in trainer.daemon.get("/v1/runs/run-1/windows")]


def test_a_lease_that_is_lost_ends_the_replay(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    ended = threading.Event()

    def waits(its: gnomon.ReplayTask) -> gnomon.ReplayResult:
        trainer.daemon.kill()
        trainer.daemon.start("another.sqlite")
        try:
            return replays.hangs_politely(its)
        finally:
            ended.set()

    run_windows(trainer, tmp_path)._close(1)
    assert lease(trainer, waits).run() == 0
    assert ended.is_set()


def test_an_answer_waits_for_a_controller_that_is_away(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    def cuts(its: gnomon.ReplayTask) -> gnomon.ReplayResult:
        trainer.daemon.kill()
        threading.Timer(1.0, trainer.daemon.start).start()
        return replays.result(its)

    run_windows(trainer, tmp_path)
    assert lease(trainer, cuts).run() == 1


def test_the_program_replays_and_ends_in_order(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    run_windows(trainer, tmp_path)
    command = [sys.executable, "-m", "gnomon.verify_program"]
    tests = CHECKOUT / "clients" / "python" / "tests"
    program = subprocess.Popen(
        [*command, "replays:good", "--controller", trainer.daemon.url, "--name", "p1"],
        cwd=tests,
        stderr=subprocess.PIPE,
        text=True,
    )

    def done() -> list[Any]:
        rows = trainer.daemon.get("/v1/runs/run-1/replays")
        return [row for row in rows if row["state"] == "done" and row["verifier"] == "p1"]

    wait_for(done, 20, "a replay of the program")
    program.terminate()
    _, errors = program.communicate(timeout=20)
    assert program.returncode == 0, errors
    assert "replays completed" in errors


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["replays:missing"], "function"),
        ([], "expected one of them"),
        (["replays:good", "--controller", "nowhere"], "url: 'nowhere'"),
        (["replays:good", "--label", "pool"], "KEY=VALUE"),
        (["replays:good", "--timeout", "0"], "more than 0 seconds"),
        (["--command", "missing.toml"], "a file with [command]"),
        (["replays:good", "--root", "/"], "only with --command"),
    ],
)
def test_a_wrong_command_line_is_one_error(arguments: list[str], wrong: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gnomon.verify_program", *arguments],
        cwd=CHECKOUT / "clients" / "python" / "tests",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert wrong in done.stderr
    assert "Traceback" not in done.stderr


def test_bits_are_compared_where_they_are_promised_alone(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    run_windows(trainer, tmp_path)
    run_print = trainer.daemon.get("/v1/runs/run-1")["registration"]["fingerprint"]["build"]
    assert "(not exact: x/y)" in run_print
    lease(trainer, replays.plain).run()
    exact = Verifier(replays.plain, exact_replay=True)
    lease(trainer, exact).run()
    rows = trainer.daemon.get("/v1/runs/run-1/replays")
    builds = {row["fingerprint"]["build"] for row in rows if row["state"] == "done"}
    assert {"(not exact: v1)" in build for build in builds} == {True, False}
