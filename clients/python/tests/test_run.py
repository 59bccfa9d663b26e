"""A run against a real controller: what it reports and refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import threading
from typing import Any

import pytest
from daemon import wait_for
from trainer import PLAN, SITES, Trainer, take_steps, take_steps_until

import gnomon
from gnomon.connection import Connection
from gnomon.description import Description
from gnomon.ranks import find_ranks
from gnomon.run import wait_until_registered


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


def test_what_a_trainer_is_and_can_do_is_registered(trainer: Trainer) -> None:
    can = gnomon.Capabilities(plan="module", rollback="restart", when="restart", compiled=True)
    run = trainer.init(
        framework="pytorch", tags=["night", "7b"], checkpoint_format="torch_dcp", capabilities=can
    )
    take_steps(run, 1)
    run.notice("data_mismatch", "the loader was shuffled anew")
    trainer.wait_for_steps(1)
    said = trainer.daemon.get("/v1/runs/run-1")["registration"]
    assert (said["framework"], said["tags"]) == ("pytorch", ["night", "7b"])
    assert said["checkpoint_format"] == "torch_dcp"
    assert said["capabilities"] == dataclasses.asdict(can)
    (notice,) = wait_for(lambda: trainer.daemon.get("/v1/runs/run-1/notices"), 10)
    assert (notice["kind"], notice["text"]) == ("data_mismatch", "the loader was shuffled anew")


def test_an_older_daemon_gets_what_it_knows(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetch = Description.fetch

    def older(connection: Connection) -> Description:
        description = fetch(connection)
        schemas = description._schemas
        for name in ("framework", "tags", "checkpoint_format", "capabilities"):
            schemas["RunRegistration"]["properties"].pop(name, None)
        schemas["StepReport"]["required"].append("grad_norm")
        kinds = schemas["TrainerNotice"]["properties"]["kind"]
        kinds["enum"] = [kind for kind in kinds["enum"] if kind != "data_mismatch"]
        return description

    monkeypatch.setattr(Description, "fetch", staticmethod(older))
    run = trainer.init(framework="pytorch", tags=["night"])
    with run.step() as s:
        s.log(loss=1.0)
    run.notice("data_mismatch", "the loader was shuffled anew")
    take_steps(run, 1)
    assert trainer.wait_for_steps(2)[0]["grad_norm"] == 0
    registration = trainer.daemon.get("/v1/runs/run-1")["registration"]
    assert "pytorch" not in str(registration)
    wait_for(lambda: "this controller takes no notice data_mismatch" in caplog.text, 10)
    assert trainer.daemon.get("/v1/runs/run-1/notices") == []


def test_a_checkpoint_comes_behind_the_step_that_it_is_of(trainer: Trainer) -> None:
    run = trainer.init(mode="offline")
    for _ in range(2):
        with run.step() as s:
            s.log(loss=1.0)
            run.checkpoint(f"/step-{s.step}")
    assert run._lead is not None
    run._lead.outbox.flush()
    targets = [it.target for it in run._lead.spool.oldest(100, 1 << 20)]
    assert targets == ["attempts", "steps", "checkpoints", "steps", "checkpoints"]


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
    trainer.daemon.kill()
    later = [tmp_path / f"later-{i}" for i in range(2)]
    for path in later:
        path.touch()
        run.checkpoint(path)
        take_steps(run, 1)
    assert [run.is_needed(path) for path in later] == [True, True], "neither is reported yet"


class Tensor:
    """As much of a tensor as the loop touches. `values` are read by another thread, later."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.read_by = ""

    def detach(self) -> Tensor:
        return self

    def __float__(self) -> float:

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
        ({"directory": "/dev/null"}, r"directory: /dev/null/y .* can be written \(.*Not a dir"),
    ],
)
def test_what_cannot_be_accepted_is_one_error(
    tmp_path: pathlib.Path, arguments: dict[str, Any], wrong: str
) -> None:
    given = {"project": "x", "name": "y", "sites": SITES, "plan": PLAN, "directory": tmp_path}
    with pytest.raises(gnomon.ConfigError, match=wrong):
        gnomon.init(**{**given, **arguments})


def test_decisions_are_shared_apart_from_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the group of a GPU each step would wait for what the GPU has still to do."""
    made: list[str] = []
    used: list[Any] = []

    class Distributed:
        @staticmethod
        def is_available() -> bool:
            return True

        is_initialized = is_gloo_available = is_available

        @staticmethod
        def get_world_size() -> int:
            return 2

        @staticmethod
        def get_rank() -> int:
            return 1

        @staticmethod
        def new_group(backend: str) -> str:
            made.append(backend)
            return "a group of its own"

        @staticmethod
        def broadcast_object_list(values: list[Any], src: int, group: Any = None) -> None:
            used.append(group)
            values[0] = "of rank 0"

    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed)
    ranks = find_ranks(None, None, 1)
    assert [ranks.share("mine"), ranks.share("mine")] == ["of rank 0"] * 2
    assert (made, used) == (["gloo"], ["a group of its own"] * 2)


def test_the_environment_says_which_rank_this_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(gnomon.ConfigError, match="this is rank 2"):
        gnomon.init(project="x", name="y", sites=SITES, plan=PLAN, directory=tmp_path)
