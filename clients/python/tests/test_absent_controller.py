"""A run without a controller, for a while or at all: what it keeps and what it does."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest
from daemon import wait_for
from trainer import (
    BLOCK,
    SITES,
    Inbox,
    Trainer,
    answers,
    offline,
    rollback,
    take_steps,
    take_steps_until,
)

import gnomon


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
    assert not list(trainer.folder.glob("y/spool/refused*"))
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))


def test_a_pause_without_a_controller_ends_with_it(trainer: Trainer) -> None:
    run = trainer.init(on_loss="pause", grace_seconds=0.2)
    take_steps(run, 1)
    trainer.wait_for_steps(1)
    trainer.daemon.kill()
    wait_for(lambda: run._lead is not None and run._lead.contact.away_seconds() > 0.3, 10)

    threading.Timer(1.0, trainer.daemon.start).start()
    begun = time.monotonic()
    wait_for(lambda: run._attention, 5)
    take_steps(run, 1)
    assert time.monotonic() - begun > 0.8
    trainer.wait_for_steps(2)


def test_a_run_that_is_refused_is_an_error_and_a_pause_says_why(
    trainer: Trainer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = trainer.init()
    take_steps(run, 1)
    trainer.wait_for_steps(1)
    run._close(1)
    other = trainer.init(
        sites=SITES[:2], directory=tmp_path / "other", on_loss="pause", grace_seconds=0.0
    )
    lead = other._lead
    assert lead is not None
    wait_for(lambda: lead.contact.away_seconds() > 1.5, 10, "more than one refusal")
    why = "409 Another model under a known name"
    errors = [it.getMessage() for it in caplog.records if it.levelname == "ERROR"]
    assert [why in it and "not supervised" in it for it in errors] == [True], "once a minute"
    assert why in lead.why_waiting()
    lead.contact.succeeded()
    lead.contact.failed("no route to host")
    assert "no route to host" in lead.why_waiting()


def test_a_directive_that_waited_for_the_controller_is_not_undone_by_its_return(
    tmp_path: pathlib.Path,
) -> None:
    run = offline(tmp_path, on_loss="bf16", grace_seconds=0.0, on_rollback=lambda to: None)
    assert run._lead is not None
    take_steps(run, 3)
    run._lead.contact.failed("away")
    run._attend()
    take_steps(run, 1)
    assert run.plan.version == -1
    run._lead.contact.succeeded()
    run._lead._inbox = Inbox(rollback(1, 3, "/ck-3", BLOCK, 5))  # type: ignore[assignment]
    run._attend()
    take_steps(run, 1)
    assert (run.plan.version, run.newest_step) == (5, 4)
    run._close(0)


def test_a_trainer_that_must_be_restarted_for_bf16_says_no_bf16(tmp_path: pathlib.Path) -> None:
    restart = gnomon.Capabilities(when="restart", rollback="restart")
    run = offline(tmp_path, on_loss="bf16", grace_seconds=0.0, capabilities=restart)
    assert run._lead is not None
    run._lead.contact.failed("away")
    run._attend()
    take_steps(run, 2)
    assert run.plan.version == 1
    assert "plan_without_controller" not in " ".join(answers(run))
    run._close(0)


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
