"""What a run does with each directive, alone and as several ranks."""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from daemon import Daemon, wait_for
from trainer import (
    BLOCK,
    PLAN,
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
from gnomon.directives import DirectiveInbox
from gnomon.records import Directive
from gnomon.run import Run


def directives(daemon: Daemon) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = daemon.get("/v1/runs/run-1/directives")
    return rows


def order(trainer: Trainer, run: Run, kind: str, **members: Any) -> dict[str, Any]:
    """A person's order, and its row once the run has answered it."""
    trainer.wait_for_steps(1)
    trainer.daemon.override(kind, **members)

    def answered() -> Any:
        return [
            row for row in directives(trainer.daemon) if row["state"] in ("applied", "rejected")
        ]

    take_steps_until(run, lambda: answered() and answered()[-1]["kind"] == kind)
    row: dict[str, Any] = answered()[-1]
    return row


def test_a_plan_takes_effect_at_a_step_and_the_steps_say_so(trainer: Trainer) -> None:
    plans: list[str] = []
    run = trainer.init(on_plan=lambda plan: plans.append(plan.gemm(SITES[0], "fprop").recipe))
    take_steps(run, 1)
    row = order(trainer, run, "set_plan", plan=BLOCK, expires_seconds=3600)
    assert (row["state"], plans) == ("applied", ["current", "block"])
    assert run.plan.version == row["plan_version"] > 1
    run.finish()
    for step in trainer.daemon.get("/v1/runs/run-1/steps"):
        expected = row["plan_version"] if step["step"] > row["applied_step"] else 1
        assert step["plan_version"] == expected


def test_a_plan_that_is_rejected_leaves_the_old_one_and_says_why(trainer: Trainer) -> None:
    def on_plan(plan: gnomon.PrecisionPlan) -> None:
        if plan.version > 1:
            raise gnomon.Rejected("no kernel for block scales here")

    run = trainer.init(on_plan=on_plan)
    take_steps(run, 1)
    row = order(trainer, run, "set_plan", plan=BLOCK, expires_seconds=3600)
    assert row["state"] == "rejected"
    assert row["reject_reason"] == "no kernel for block scales here"
    assert run.plan.version == 1


def test_a_function_that_fails_at_a_plan_is_rejected_and_the_error_comes_out(
    trainer: Trainer,
) -> None:
    def on_plan(plan: gnomon.PrecisionPlan) -> None:
        if plan.version > 1:
            raise ZeroDivisionError("in the user's code")

    run = trainer.init(on_plan=on_plan)
    take_steps(run, 1)
    trainer.wait_for_steps(1)
    trainer.daemon.override("set_plan", plan=BLOCK, expires_seconds=3600)
    with pytest.raises(ZeroDivisionError):
        take_steps_until(run, lambda: False)
    run._close(5)
    (row,) = directives(trainer.daemon)
    assert row["state"] == "rejected"
    assert row["reject_reason"] == "on_plan raised ZeroDivisionError: in the user's code"


def stepping(run: Run) -> threading.Thread:
    """The loop on a thread of its own, with steps of a millisecond, until the run ends it."""
    never = threading.Event()

    def step() -> None:
        with contextlib.suppress(gnomon.Stopped, gnomon.GnomonError):
            while not never.wait(0.001):
                take_steps(run, 1)

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    return thread


def pause(trainer: Trainer) -> None:
    trainer.wait_for_steps(1)
    trainer.daemon.override("pause")
    wait_for(lambda: directives(trainer.daemon)[0]["state"] == "applied", 10)


def test_a_pause_holds_the_loop_until_it_is_resumed(trainer: Trainer) -> None:
    run = trainer.init()
    loop = stepping(run)
    pause(trainer)
    held = run.newest_step
    assert not wait_quietly(lambda: run.newest_step > held, 1.0)
    trainer.daemon.override("resume")
    wait_for(lambda: run.newest_step > held, 10)
    trainer.daemon.override("stop")
    loop.join(timeout=20)
    assert not loop.is_alive()


def wait_quietly(condition: Callable[[], bool], seconds: float) -> bool:
    try:
        return bool(wait_for(condition, seconds))
    except AssertionError:
        return False


def test_a_pause_outlives_a_restart(trainer: Trainer) -> None:
    run = trainer.init()
    loop = stepping(run)
    pause(trainer)
    run._close(5)
    loop.join(timeout=10)
    again = trainer.init()
    loop = stepping(again)
    assert not wait_quietly(lambda: again.newest_step > 0, 1.0)
    trainer.daemon.override("resume")
    wait_for(lambda: again.newest_step > 0, 10)
    again._close(5)
    loop.join(timeout=10)
    assert not loop.is_alive()


def test_a_stop_takes_a_checkpoint_and_ends_the_loop(
    trainer: Trainer, tmp_path: pathlib.Path
) -> None:
    def on_checkpoint() -> None:
        run.checkpoint(tmp_path / "last")

    with trainer.init(on_checkpoint=on_checkpoint) as run:
        take_steps(run, 1)
        trainer.wait_for_steps(1)
        trainer.daemon.override("stop")
        take_steps_until(run, lambda: False)
    assert run._stopped
    shown = trainer.daemon.get("/v1/runs/run-1")
    assert shown["state"] == "stopped"
    (checkpoint,) = trainer.daemon.get("/v1/runs/run-1/checkpoints")
    assert checkpoint["step"] == shown["finished_step"] == run.newest_step


def test_a_checkpoint_is_taken_when_it_is_ordered(trainer: Trainer, tmp_path: pathlib.Path) -> None:
    def on_checkpoint() -> None:
        run.checkpoint(tmp_path / f"step-{run.newest_step}")

    run = trainer.init(on_checkpoint=on_checkpoint)
    take_steps(run, 1)
    row = order(trainer, run, "checkpoint_now")
    assert row["state"] == "applied"
    (checkpoint,) = trainer.daemon.get("/v1/runs/run-1/checkpoints")
    assert checkpoint["step"] == row["applied_step"]


def test_a_checkpoint_that_nobody_can_take_is_rejected(trainer: Trainer) -> None:
    run = trainer.init()
    take_steps(run, 1)
    row = order(trainer, run, "checkpoint_now")
    assert row["state"] == "rejected"
    assert "takes no checkpoints between its own" in row["reject_reason"]


def test_a_plan_at_a_restart_ends_the_process_and_is_applied_by_the_next(
    trainer: Trainer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "step"

    def on_checkpoint() -> None:
        checkpoint.touch()
        run.checkpoint(checkpoint)

    restart = gnomon.Capabilities(when="restart", rollback="restart")
    run = trainer.init(capabilities=restart, on_checkpoint=on_checkpoint)
    take_steps(run, 3)
    trainer.wait_for_steps(3)
    trainer.daemon.override("set_plan", plan=BLOCK, expires_seconds=3600)
    with pytest.raises(gnomon.RestartRequired) as raised:
        take_steps_until(run, lambda: False)
    assert raised.value.code == 75
    run._close(5)
    assert directives(trainer.daemon)[0]["state"] == "acknowledged"

    polls: list[str] = []
    poll = DirectiveInbox._poll

    def counted(its: DirectiveInbox, name: str) -> None:
        polls.append(name)
        poll(its, name)

    monkeypatch.setattr(DirectiveInbox, "_poll", counted)
    again = trainer.init(capabilities=restart)
    assert not wait_quietly(lambda: len(polls) > 3, 1.0), "what waits is asked for again and again"
    assert again.resume_from is not None
    assert again.resume_from.step == run.newest_step
    assert again.resume_from.checkpoint == str(checkpoint)
    assert again.plan.gemm(SITES[0], "fprop").recipe == "block"
    again.start_from(again.resume_from.step)
    take_steps(again, 2)
    again.finish()
    (row,) = directives(trainer.daemon)
    assert (row["state"], row["applied_step"]) == ("applied", run.newest_step)
    last = trainer.daemon.get("/v1/runs/run-1/steps")[-1]
    assert (last["attempt"], last["plan_version"]) == (2, row["plan_version"])


def test_a_rollback_loads_the_checkpoint_and_begins_the_next_attempt(
    tmp_path: pathlib.Path,
) -> None:
    seen: list[gnomon.Rollback] = []
    run = offline(tmp_path, on_rollback=seen.append)
    take_steps(run, 5)
    run.checkpoint("/ck-5")
    take_steps(run, 3)
    assert run._lead is not None
    run._lead._inbox = Inbox(rollback(1, 5, "/ck-5", BLOCK, 2))  # type: ignore[assignment]
    run._attend()
    with run.step() as s:
        assert (s.step, s.attempt, s.plan_version) == (6, 2, 2)
        s.log(loss=1.0)
    assert [(it.to_step, it.checkpoint_uri, it.plan.version) for it in seen] == [(5, "/ck-5", 2)]
    said = answers(run)
    applied = next(i for i, it in enumerate(said) if it.startswith("directives/1/ack"))
    assert '"attempt":1' in said[applied]
    assert '"step":8' in said[applied]
    assert '"cause":"rollback"' in said[applied + 1]
    run._close(0)


def test_a_restart_after_a_rollback_forgets_the_branch_that_was_left(
    tmp_path: pathlib.Path,
) -> None:
    """Also where the rollback itself was a restart."""
    restart = gnomon.Capabilities(when="restart", rollback="restart")
    run = offline(tmp_path, capabilities=restart)
    for step in (1, 2):
        take_steps(run, 1)
        (tmp_path / f"ck-{step}").touch()
        run.checkpoint(tmp_path / f"ck-{step}")
    assert run._lead is not None
    order = rollback(1, 1, str(tmp_path / "ck-1"))
    run._lead._inbox = Inbox(order)  # type: ignore[assignment]
    run._attend()
    with pytest.raises(gnomon.RestartRequired):
        take_steps(run, 1)
    run._close(0)
    again = offline(tmp_path, capabilities=restart)
    again.start_from(1)
    take_steps(again, 1)  # and it is killed
    again._close(0)
    third = offline(tmp_path, capabilities=restart)
    assert third.resume_from is not None
    assert third.resume_from.step == 1
    third._close(0)


def test_a_batch_of_another_step_is_not_trained_on_after_a_rollback(tmp_path: pathlib.Path) -> None:
    run = offline(tmp_path, rollback(1, 0, "/ck-0"), on_rollback=lambda to: None)
    with pytest.raises(gnomon.RolledBack, match=r"rolled back to step 0: go on with .* step 1"):
        run.step(batch=[1, 2]).__enter__()
    take_steps(run, 1)
    assert run.newest_step == 1
    run._close(0)


def test_a_rollback_that_is_rejected_leaves_plan_and_step(tmp_path: pathlib.Path) -> None:
    plans: list[int] = []

    def on_rollback(to: gnomon.Rollback) -> None:
        raise gnomon.Rejected("the checkpoint is gone")

    run = offline(
        tmp_path,
        rollback(1, 0, "/ck-0", BLOCK, 4),
        on_rollback=on_rollback,
        on_plan=lambda plan: plans.append(plan.version),
    )
    take_steps(run, 1)
    assert run.newest_step == 1
    assert (plans, run.plan.version) == ([1, 4, 1], 1)
    assert any("the checkpoint is gone" in it for it in answers(run))
    run._close(0)


def test_functions_that_fail_are_rejected_and_their_errors_come_out(
    tmp_path: pathlib.Path,
) -> None:
    def fails(*_: Any) -> None:
        raise FileNotFoundError("model.pt")

    for kind, name in (
        ("rollback", "on_rollback"),
        ("checkpoint_now", "on_checkpoint"),
        ("stop", "on_checkpoint"),
    ):
        run = offline(tmp_path / kind, **{"on_rollback": lambda to: None, name: fails})
        take_steps(run, 1)
        assert run._lead is not None
        its = Directive(1, kind, checkpoint_uri="/ck", to_step=0)
        run._lead._inbox = Inbox(its)  # type: ignore[assignment]
        run._attend()
        with pytest.raises(FileNotFoundError):
            take_steps(run, 1)
        said = answers(run)
        assert '"state":"rejected"' in said[-1]
        assert f"{name} raised FileNotFoundError: model.pt" in said[-1]
        run._close(0)


def test_without_a_way_back_a_rollback_is_rejected_or_restarts(tmp_path: pathlib.Path) -> None:
    run = offline(
        tmp_path / "none", rollback(1, 0, "/ck"), capabilities=gnomon.Capabilities(rollback="none")
    )
    take_steps(run, 1)
    assert any("cannot go back to a checkpoint" in it for it in answers(run))
    run._close(0)

    run = offline(tmp_path / "restart")
    take_steps(run, 4)
    assert run._lead is not None
    run._lead._inbox = Inbox(rollback(1, 2, "s3://ck-2", BLOCK, 2))  # type: ignore[assignment]
    run._attend()
    with pytest.raises(gnomon.RestartRequired, match="rollback to step 2: spoiled"):
        take_steps(run, 1)
    run._close(0)
    again = offline(tmp_path / "restart")
    assert again.resume_from is not None
    resumed = again.resume_from
    assert (resumed.checkpoint, resumed.step, resumed.plan.version) == ("s3://ck-2", 2, 2)
    with pytest.raises(gnomon.GnomonError, match=r"rolled this run back to step 2, but .* step 4"):
        again.start_from(4)
    again.start_from(2)
    take_steps(again, 1)
    said = answers(again)
    applied = [i for i, it in enumerate(said) if '"state":"applied"' in it]
    assert '"step":4' in said[applied[0]]
    assert '"cause":"rollback"' in said[applied[0] + 1]
    again._close(0)


def rejected(run: Run) -> list[str]:
    return [it for it in answers(run) if '"state":"rejected"' in it]


def test_a_rollback_to_a_checkpoint_that_is_gone_is_rejected(tmp_path: pathlib.Path) -> None:
    run = offline(tmp_path / "run", rollback(1, 0, str(tmp_path / "deleted")))
    take_steps(run, 1)
    assert run.newest_step == 1
    assert f"{tmp_path / 'deleted'} is not there any more" in rejected(run)[0]
    run._close(0)


def test_a_checkpoint_that_goes_while_its_rollback_waits_for_a_restart_is_rejected(
    tmp_path: pathlib.Path,
) -> None:
    run = offline(tmp_path)
    for step in (1, 2):
        take_steps(run, 1)
        (tmp_path / f"ck-{step}").touch()
        run.checkpoint(tmp_path / f"ck-{step}")
    assert run._lead is not None
    run._lead._inbox = Inbox(  # type: ignore[assignment]
        rollback(1, 1, str(tmp_path / "ck-1"), BLOCK, 2)
    )
    run._attend()
    with pytest.raises(gnomon.RestartRequired):
        take_steps(run, 1)
    run._close(0)
    (tmp_path / "ck-1").unlink()
    again = offline(tmp_path)
    assert again.resume_from is not None
    assert (again.resume_from.step, again.plan.version) == (2, 1)
    assert "ck-1 is not there any more" in rejected(again)[0]
    again.start_from(2)
    take_steps(again, 1)
    assert again._lead is not None
    assert again._lead.state.last_directive == 1
    again._close(0)
    third = offline(tmp_path)
    third.start_from(2)  # nothing is left of the rollback
    third._close(0)


def test_a_used_number_is_rejected(tmp_path: pathlib.Path) -> None:
    run = offline(tmp_path, Directive(3, "resume"), Directive(3, "pause"))
    take_steps(run, 2)
    said = answers(run)
    assert '"state":"applied"' in said[-2]
    assert "number 3 was used before; accepted: numbers above 3" in said[-1]
    run._close(0)


def test_a_plan_for_other_modules_is_rejected_with_their_names(tmp_path: pathlib.Path) -> None:
    plan = '[[rule]]\nmatch = "model.blocks.*"\ngemms = "bf16"\n'
    run = offline(tmp_path, Directive(1, "set_plan", plan=plan, plan_version=2))
    take_steps(run, 1)
    assert any("at least one of the model's sites" in it for it in answers(run))
    run._close(0)


class Group:
    """Ranks as threads: `broadcast` gives each what rank 0 has called it with."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.value: Any = None

    def broadcast(self, rank: int) -> Callable[[Any], Any]:
        def share(value: Any) -> Any:
            if rank == 0:
                self.value = value
            self.barrier.wait()
            shared = self.value
            self.barrier.wait()
            return shared

        return share


def on_ranks(size: int, work: Callable[[int, Callable[[Any], Any]], None]) -> list[str]:
    """Runs `work` on each rank; what each has raised, in words."""
    group = Group(size)
    errors = [""] * size

    def run(rank: int) -> None:
        try:
            work(rank, group.broadcast(rank))
        except BaseException as error:
            errors[rank] = f"{type(error).__name__}: {error}"
            group.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def init_rank(folder: pathlib.Path, rank: int, share: Any, **arguments: Any) -> Run:
    given = {"project": "x", "name": "y", "sites": SITES, "plan": PLAN, "mode": "offline"}
    return gnomon.init(
        **{**given, "directory": folder, "rank": rank, "broadcast": share, **arguments}
    )


def test_all_ranks_take_a_plan_at_the_same_step(tmp_path: pathlib.Path) -> None:
    seen: list[tuple[int, int, int]] = []

    def work(rank: int, share: Any) -> None:
        run = init_rank(tmp_path, rank, share, broadcast_every=2)
        for _ in range(6):
            if rank == 0 and run.newest_step == 3:
                assert run._lead is not None
                plan = Directive(1, "set_plan", plan=BLOCK, plan_version=2)
                run._lead._inbox = Inbox(plan)  # type: ignore[assignment]
            with run.step() as s:
                s.log(loss=1.0)
                seen.append((rank, s.step, s.plan_version))
        run._close(0)

    assert on_ranks(3, work) == ["", "", ""]
    for rank in range(3):
        versions = [version for its, _, version in sorted(seen) if its == rank]
        assert versions == [1, 1, 1, 1, 2, 2]


def test_a_checkpoint_that_is_gone_is_rejected_on_all_ranks(tmp_path: pathlib.Path) -> None:
    def work(rank: int, share: Any) -> None:
        run = init_rank(tmp_path, rank, share)
        if rank == 0:
            assert run._lead is not None
            order = rollback(1, 0, str(tmp_path / "deleted"))
            run._lead._inbox = Inbox(order)  # type: ignore[assignment]
        take_steps(run, 1)
        run._close(0)

    assert on_ranks(2, work) == ["", ""]


def test_ranks_that_begin_with_other_plans_are_one_clear_error(tmp_path: pathlib.Path) -> None:
    def work(rank: int, share: Any) -> None:
        init_rank(tmp_path, rank, share, plan=BLOCK if rank == 1 else PLAN)._close(0)

    errors = on_ranks(2, work)
    assert errors[1].startswith("RanksDisagree: the plan differs between ranks")
    assert "on rank 1. Give all ranks the same" in errors[1]


def test_a_rank_that_rejects_what_rank_0_accepts_is_one_clear_error(tmp_path: pathlib.Path) -> None:
    def work(rank: int, share: Any) -> None:
        def on_plan(plan: gnomon.PrecisionPlan) -> None:
            if rank == 1 and plan.version == 2:
                raise gnomon.Rejected("no memory for it")

        run = init_rank(tmp_path, rank, share, on_plan=on_plan)
        if rank == 0:
            assert run._lead is not None
            plan = Directive(1, "set_plan", plan=BLOCK, plan_version=2)
            run._lead._inbox = Inbox(plan)  # type: ignore[assignment]
        take_steps(run, 1)

    errors = on_ranks(2, work)
    assert errors[1].startswith(
        "RanksDisagree: directive 1 (set_plan) is accepted on rank 0 and rejected (no memory for "
        "it) on rank 1"
    )
