"""A run against a real controller: what it reports, obeys and survives."""

from __future__ import annotations

import json
import math
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from daemon import Daemon, wait_for

import gnomon
from gnomon.run import Run, wait_until_registered

SITES = [f"model.layers.{i}.mlp.up_proj" for i in range(3)]
PLAN = 'version = 1\n[[rule]]\nmatch = "*"\ngemms = "fp8"\n'


class Trainer:
    """Begins runs of one directory, and closes what a test leaves open."""

    def __init__(self, daemon: Daemon, folder: pathlib.Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.runs: list[Run] = []

    def init(self, **arguments: Any) -> Run:
        given = {
            "project": "x",
            "name": "y",
            "url": self.daemon.url,
            "sites": SITES,
            "plan": PLAN,
            "directory": self.folder,
            "flush_seconds": 10.0,
            **arguments,
        }
        run = gnomon.init(**given)
        self.runs.append(run)
        return run

    def wait_for_steps(self, count: int, run: str = "run-1") -> list[dict[str, Any]]:
        def steps() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = self.daemon.get(f"/v1/runs/{run}/steps")
            return rows if len(rows) >= count else []

        rows: list[dict[str, Any]] = wait_for(steps, 15, f"{count} steps of {run}")
        return rows


@pytest.fixture
def trainer(daemon: Daemon, tmp_path: pathlib.Path) -> Iterator[Trainer]:
    its = Trainer(daemon, tmp_path / "gnomon")
    yield its
    for run in its.runs:
        run._close(0.1)


def take_steps(run: Run, count: int, loss: Any = 2.0) -> None:
    for _ in range(count):
        with run.step() as s:
            s.log(loss=loss, grad_norm=1.0)


def take_steps_until(run: Run, condition: Any, seconds: float = 15) -> None:
    def step() -> Any:
        take_steps(run, 1)
        return condition()

    wait_for(step, seconds)


def test_steps_and_checkpoints_are_reported_in_order(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    run = trainer.init(total_steps=100, checkpoint_every=5)
    run.checkpoint(tmp_path / "step-0")
    for _ in range(5):
        with run.step(batch=[1, 2, 3]) as s:
            s.log(loss=2.5, learning_rate=1e-3)
            s.log(grad_norm=0.5, tokens=96, weights_hash="abc")
            if s.step == 5:
                run.checkpoint(tmp_path / "step-5", size_bytes=7)
    assert wait_until_registered(run, 10)
    assert run.id == "run-1"
    run.finish(final_loss=2.25)
    rows = trainer.wait_for_steps(5)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert {row["batch_hash"] for row in rows} == {gnomon.batch_hash([1, 2, 3])}
    expected = {"loss": 2.5, "grad_norm": 0.5, "learning_rate": 1e-3, "tokens": 96}
    assert expected.items() <= rows[0].items()
    assert rows[0]["weights_hash"] == "abc"
    checkpoints = trainer.daemon.get("/v1/runs/run-1/checkpoints")
    assert [(row["step"], row["bytes"]) for row in checkpoints] == [(0, 0), (5, 7)]
    assert checkpoints[1]["uri"] == str(tmp_path / "step-5")
    summary = trainer.daemon.get("/v1/runs/run-1")
    assert (summary["state"], summary["final_loss"]) == ("completed", 2.25)
    assert not list((tmp_path / "gnomon" / "y" / "spool").glob("refused*"))


def test_a_checkpoint_is_needed_until_the_controller_lets_it_go(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    run = trainer.init(checkpoint_every=10)
    paths = [tmp_path / f"step-{10 * i}" for i in range(6)]
    for path in paths:
        path.touch()
        run.checkpoint(path)
        assert run.is_needed(path), "it is not reported yet"
        take_steps(run, 10)
    assert run._lead is not None
    reporter, spool = run._lead._reporter, run._lead.spool
    assert reporter is not None
    wait_for(lambda: reporter.protected and spool.count == 0, 10)
    assert reporter.protected == [str(path) for path in paths], "no window was replayed yet"
    reporter.protected = [str(paths[1])]
    assert [run.is_needed(path) for path in paths] == [False, True, False, False, False, True]


class Tensor:
    """As much of a tensor as the loop touches. `values` are read by another thread, later."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.read_by = ""

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:
        import threading

        self.read_by = threading.current_thread().name
        return self.value


def test_tensors_are_read_by_another_thread(trainer: Trainer) -> None:
    run = trainer.init()
    tensor = Tensor(2.5)
    take_steps(run, 1, tensor)
    assert tensor.read_by == ""
    assert trainer.wait_for_steps(1)[0]["loss"] == 2.5
    assert tensor.read_by == "gnomon-outbox"


def test_losses_that_are_not_finite_are_facts(trainer: Trainer) -> None:
    run = trainer.init()
    for loss in (math.nan, math.inf, 1.0):
        take_steps(run, 1, loss)
    rows = trainer.wait_for_steps(3)
    assert [row["loss"] for row in rows] == [None, "Infinity", 1.0]


def test_a_gradient_norm_need_not_be_said(trainer: Trainer) -> None:
    run = trainer.init()
    with run.step() as s:
        s.log(loss=2.0)
    (row,) = trainer.wait_for_steps(1)
    assert not row["grad_norm"]


def test_a_value_that_is_no_number_drops_its_step_alone_and_says_so(trainer: Trainer) -> None:
    class Odd:
        def detach(self) -> Odd:
            return self

        def __float__(self) -> float:
            raise ValueError("a tensor of 4 elements")

    run = trainer.init()
    take_steps(run, 1)
    take_steps(run, 1, Odd())
    take_steps(run, 1)
    assert [row["step"] for row in trainer.wait_for_steps(2)] == [1, 3]
    notices = wait_for(lambda: trainer.daemon.get("/v1/runs/run-1/notices"), 10)
    assert notices[0]["kind"] == "reports_dropped"
    assert "steps 2 to 2" in notices[0]["text"]


def test_what_the_controller_refuses_is_set_aside_with_its_reason(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    run = trainer.init()
    take_steps(run, 1000)
    with run.step() as s:
        s.log(loss=1.0, learning_rate=-5.0)
    take_steps(run, 1000)
    rows = trainer.wait_for_steps(2000)
    assert [row["step"] for row in rows] == [*range(1, 1001), *range(1002, 2002)]
    refused = wait_for(
        lambda: list((tmp_path / "gnomon" / "y" / "spool").glob("refused.jsonl")), 10
    )
    line = json.loads(refused[0].read_text())
    assert "learning_rate" in line["why"]
    assert json.loads(line["report"])["step"] == 1001


def test_a_step_without_a_loss_is_one_clear_error(trainer: Trainer) -> None:
    run = trainer.init()
    with (
        pytest.raises(gnomon.GnomonError, match="step 1 was ended without a loss"),
        run.step() as s,
    ):
        s.log(grad_norm=1.0)


def test_a_step_that_raises_is_not_reported(trainer: Trainer) -> None:
    run = trainer.init()
    with pytest.raises(KeyError), run.step() as s:
        s.log(loss=os.environ["NO_SUCH_LOSS"])
    assert run.newest_step == 0
    take_steps(run, 1)
    assert [row["step"] for row in trainer.wait_for_steps(1)] == [1]


def test_an_absent_controller_never_stops_the_loop_and_nothing_is_lost(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    trainer.daemon.kill()
    run = trainer.init()
    begun = time.monotonic()
    take_steps(run, 300)
    assert time.monotonic() - begun < 1
    trainer.daemon.start()
    assert len(trainer.wait_for_steps(300)) == 300
    trainer.daemon.kill()
    take_steps(run, 200)
    trainer.daemon.start()
    rows = trainer.wait_for_steps(500)
    assert [row["step"] for row in rows] == list(range(1, 501))


def test_an_hour_without_a_controller_loses_nothing(trainer: Trainer) -> None:
    """Of steps of 50 ms, with all that a step can say."""
    count = 3600 * 20
    trainer.daemon.kill()
    run = trainer.init(total_steps=count)
    costs = []
    for _ in range(count):
        begun = time.perf_counter()
        with run.step(batch=b"tokens") as s:
            s.log(loss=2.123456789, grad_norm=0.123456789, learning_rate=1.23456e-4, tokens=65536)
        costs.append(time.perf_counter() - begun)
    assert sorted(costs)[count // 2] < 50e-6
    assert run._lead is not None
    run._lead.outbox.flush()
    assert run._lead.outbox.steps_dropped == 0
    assert run._lead.spool.size_bytes < 24 << 20, "a third of its bound"
    trainer.daemon.start()
    shown = f"/v1/runs/run-1/steps?from={count}"
    wait_for(lambda: trainer.daemon.get(shown), 60, "the last step")
    assert trainer.daemon.get("/v1/runs/run-1/notices") == []


def test_a_new_ledger_is_given_what_the_trainer_knows(trainer: Trainer) -> None:
    run = trainer.init()
    take_steps(run, 10)
    trainer.wait_for_steps(10)
    trainer.daemon.kill()
    trainer.daemon.start("another.sqlite")
    take_steps(run, 10)
    rows = trainer.wait_for_steps(10)
    assert [row["step"] for row in rows] == list(range(11, 21))
    assert trainer.daemon.get("/v1/runs/run-1")["attempts"][0]["base_step"] == 0


KILLED = """
import os, sys, time, gnomon
run = gnomon.init(project="x", name="y", sites=["a.0.b"], plan=gnomon.PrecisionPlan.fp8())
for i in range(60):
    with run.step() as s:
        s.log(loss=1.0)
    if s.step == 40:
        open("ck-40", "w").close()
        run.checkpoint("ck-40")
time.sleep(float(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


def test_a_killed_trainer_is_resumed_and_what_it_spooled_is_delivered(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    """The controller is away while it dies, so that all is in the spool alone."""
    environment = {**os.environ, "GNOMON_URL": trainer.daemon.url}
    trainer.daemon.kill()
    command = [sys.executable, "-c", KILLED, "1.5"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=False)
    trainer.daemon.start()
    run = trainer.init(sites=["a.0.b"], plan=gnomon.PrecisionPlan.fp8())
    assert run.resume_from is not None
    assert run.resume_from.step == 40
    assert run.resume_from.checkpoint == str(tmp_path / "ck-40")
    with pytest.raises(gnomon.GnomonError, match=r"checkpoint of step 40.*run.start_from"):
        take_steps(run, 1)
    run.start_from(40)
    take_steps(run, 2)
    rows = trainer.wait_for_steps(62)
    assert [(row["attempt"], row["step"]) for row in rows][58:] == [
        (1, 59),
        (1, 60),
        (2, 41),
        (2, 42),
    ]
    attempts = trainer.daemon.get("/v1/runs/run-1")["attempts"]
    assert [(it["cause"], it["base_step"]) for it in attempts] == [("start", 0), ("restart", 40)]


def test_a_full_spool_drops_steps_and_says_which(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    trainer.daemon.kill()
    run = trainer.init(spool_bytes_max=64 << 10)
    take_steps(run, 2000)
    assert run._lead is not None
    run._lead.outbox.flush()
    (tmp_path / "ck").touch()
    run.checkpoint(tmp_path / "ck")
    trainer.daemon.start()
    notices = wait_for(lambda: trainer.daemon.get("/v1/runs/run-1/notices"), 20)
    assert notices[0]["kind"] == "reports_dropped"
    rows = trainer.daemon.get("/v1/runs/run-1/steps")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert f"steps {len(rows) + 1} to 2000" in notices[0]["text"]
    take_steps(run, 1)
    wait_for(lambda: trainer.daemon.get("/v1/runs/run-1")["step"] == 2001, 10)
    assert [row["step"] for row in trainer.daemon.get("/v1/runs/run-1/checkpoints")] == [2000]


def test_bf16_without_a_controller_and_the_plan_again_with_it(trainer: Trainer) -> None:
    plans: list[int] = []
    run = trainer.init(
        on_loss="bf16", grace_seconds=0.3, on_plan=lambda plan: plans.append(plan.version)
    )
    take_steps(run, 5)
    trainer.wait_for_steps(5)
    trainer.daemon.kill()
    take_steps_until(run, lambda: run.plan.version == -1)
    assert not run.plan.any_fp8(SITES)
    take_steps(run, 5)
    trainer.daemon.start()
    take_steps_until(run, lambda: run.plan.version == 1)
    take_steps(run, 5)
    assert plans == [1, -1, 1]
    run.finish()
    rows = trainer.daemon.get("/v1/runs/run-1/steps")
    versions = [row["plan_version"] for row in rows]
    assert versions.count(-1) >= 5
    assert versions[0] == versions[-1] == 1
    notices = trainer.daemon.get("/v1/runs/run-1/notices")
    assert [row["kind"] for row in notices] == ["plan_without_controller"]
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))


def test_a_pause_without_a_controller_ends_with_it(trainer: Trainer) -> None:
    run = trainer.init(on_loss="pause", grace_seconds=0.2)
    take_steps(run, 1)
    trainer.wait_for_steps(1)
    trainer.daemon.kill()
    wait_for(lambda: run._lead is not None and run._lead.contact.away_seconds() > 0.3, 10)
    import threading

    threading.Timer(1.0, trainer.daemon.start).start()
    begun = time.monotonic()
    wait_for(lambda: run._attention, 5)
    take_steps(run, 1)
    assert time.monotonic() - begun > 0.8
    trainer.wait_for_steps(2)


def test_a_newer_process_takes_the_run_over(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    run = trainer.init()
    take_steps(run, 3)
    trainer.wait_for_steps(3)
    environment = {**os.environ, "GNOMON_URL": trainer.daemon.url}
    code = (
        "import gnomon, sys\n"
        "run = gnomon.init(project='x', name='y', sites=sys.argv[1:], plan=gnomon.PrecisionPlan"
        ".parse('version = 1\\n[[rule]]\\nmatch = \"*\"\\ngemms = \"fp8\"'), directory='other')\n"
        "with run.step() as s: s.log(loss=1.0)\n"
        "run._close(5)\n"
    )
    command = [sys.executable, "-c", code, *SITES]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    with pytest.raises(gnomon.Replaced, match="Another trainer has taken over"):
        take_steps_until(run, lambda: False)


def test_one_directory_has_one_trainer(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    trainer.init(mode="offline")
    code = (
        "import gnomon, sys\n"
        "try: gnomon.init(project='x', name='y', sites=['a'], plan='\\n', mode='offline',\n"
        "                 directory=sys.argv[1])\n"
        "except gnomon.ConfigError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "gnomon")]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "another trainer has this one" in out.stdout
    with pytest.raises(gnomon.ConfigError, match="another trainer has this one"):
        trainer.init(mode="offline")


def test_a_completed_run_and_another_project_are_refused(trainer: Trainer) -> None:
    with trainer.init() as run:
        take_steps(run, 1)
    with pytest.raises(gnomon.ConfigError, match=r"this run was completed .*gnomon-send"):
        trainer.init()
    with pytest.raises(gnomon.ConfigError, match="this one is of x/y"):
        trainer.init(project="z")


def test_after_the_end_nothing_is_reported_and_a_step_is_an_error(
    trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer.init()
    take_steps(run, 1)
    run.finish()
    run.finish()
    run.checkpoint("/late")
    assert "/late is not reported: the run is finished" in caplog.text
    with pytest.raises(gnomon.GnomonError, match="the run is finished"):
        take_steps(run, 1)


def test_a_changed_plan_does_not_change_a_run_that_goes_on(
    trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer.init()
    take_steps(run, 1)
    run._close(5)
    again = trainer.init(plan=gnomon.PrecisionPlan.fp8("block"))
    assert "the plan has changed since x/y began; the run stays in plan 1" in caplog.text
    assert again.plan.gemm(SITES[0], "fprop").recipe == "current"


def test_offline_writes_down_what_is_sent_later(trainer: Trainer) -> None:
    run = trainer.init(mode="offline")
    take_steps(run, 20)
    run._close(5)
    run = trainer.init()
    take_steps(run, 1)
    rows = trainer.wait_for_steps(21)
    assert [row["step"] for row in rows if row["attempt"] == 1] == list(range(1, 21))


def test_a_run_that_ended_offline_is_sent_by_the_program(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    with trainer.init(mode="offline") as run:
        take_steps(run, 20)
    command = [sys.executable, "-m", "gnomon.send_program"]
    folder = str(tmp_path / "gnomon" / "y")
    url = ["--controller", trainer.daemon.url]
    subprocess.run([*command, folder, *url], check=True, timeout=60)
    assert len(trainer.wait_for_steps(20)) == 20
    assert trainer.daemon.get("/v1/runs/run-1")["state"] == "completed"
    trainer.daemon.kill()
    again = subprocess.run([*command, folder, *url, "--timeout", "1"], check=False, timeout=60)
    assert again.returncode == 0, "there is nothing left to send"
    wrong = subprocess.run([*command, str(tmp_path), *url], check=False, timeout=60)
    assert wrong.returncode == 2


def test_disabled_does_nothing_but_apply_the_plan(tmp_path: pathlib.Path) -> None:
    plans: list[int] = []
    with gnomon.init(
        project="x",
        name="y",
        sites=SITES,
        plan=PLAN,
        mode="disabled",
        directory=tmp_path,
        on_plan=lambda plan: plans.append(plan.version),
    ) as run:
        take_steps(run, 3)
        run.checkpoint("nowhere")
        assert run.newest_step == 3
    assert plans == [1]
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_reports_nothing(trainer: Trainer) -> None:
    run = trainer.init()
    take_steps(run, 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if run._lead is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    take_steps(run, 1)
    assert len(trainer.wait_for_steps(2)) == 2


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"name": "a/b"}, "name: 'a/b' not accepted; expected .* no slash"),
        ({"project": ""}, "project: ''"),
        ({"project": "a\nb"}, "project"),
        ({"sites": None, "model": 3}, "model: int not accepted; expected a PyTorch module"),
        ({"plan": '[[rule]]\nmatch = "nothing.*"\n'}, "a glob that matches at least one"),
        ({"plan": "missing.toml"}, "a file that can be read"),
        ({"mode": "sometimes"}, "mode: 'sometimes'"),
        ({"rank": 3}, "broadcast: None .* this is rank 3"),
        ({"capabilities": gnomon.Capabilities(rollback="live")}, "on_rollback"),
        ({"url": "ftp://x"}, "url: 'ftp://x'"),
        ({"broadcast_every": 0}, "broadcast_every"),
    ],
)
def test_what_cannot_be_accepted_is_one_error(
    tmp_path: pathlib.Path, arguments: dict[str, Any], wrong: str
) -> None:
    given = {"project": "x", "name": "y", "sites": SITES, "plan": PLAN, "directory": tmp_path}
    with pytest.raises(gnomon.ConfigError, match=wrong):
        gnomon.init(**{**given, **arguments})


def test_the_environment_says_which_rank_this_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(gnomon.ConfigError, match="this is rank 2"):
        gnomon.init(project="x", name="y", sites=SITES, plan=PLAN, directory=tmp_path)
