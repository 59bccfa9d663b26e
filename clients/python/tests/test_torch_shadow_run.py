"""A shadow in the process under a real gnomond: no verifier, no checkpoint on disk."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

from daemon import Daemon
from torch_job import batch_of, make_evaluate, make_parts, make_step

import gnomon
from gnomon.leases import LeaseClient
from gnomon.plan import PrecisionPlan
from gnomon.torch import Fault, Shadow, adopt, plan_sites, set_plan

PLAN = PrecisionPlan.fp8()
SITE = "layers.1.down_proj"


class Loop:
    """A run of the small job whose windows the trainer measures itself."""

    def __init__(
        self, daemon: Daemon, folder: pathlib.Path, faults: tuple[Fault, ...], every: int = 20
    ) -> None:
        model, optimizer, scheduler = make_parts()
        adopt(model, PLAN)
        self.model = model
        self.run = gnomon.init(
            project="test",
            name="shadow",
            url=daemon.url,
            sites=list(plan_sites(model)),
            plan=PLAN,
            framework="pytorch",
            checkpoint_every=10,
            trainer_replays=True,
            faults=[fault.record() for fault in faults],
            directory=folder / "runs",
            capabilities=gnomon.Capabilities(exact_replay=True),
            on_plan=lambda plan: set_plan(model, plan),
            on_rollback=self.roll_back,
        )
        self.shadow = Shadow(
            model,
            optimizer,
            scheduler,
            train_step=make_step(model, optimizer, scheduler),
            evaluate=make_evaluate(model),
            every=every,
            steps=10,
            faults=faults,
            run=self.run,
            keep=4,
        )
        self.rollbacks: list[str] = []

    def roll_back(self, rollback: gnomon.Rollback) -> None:
        self.shadow.roll_back(rollback)
        self.rollbacks.append(rollback.checkpoint_uri)

    def train(self, until: Any, last: int) -> None:
        """Trains until the condition holds, `last` steps at most; a step takes 30 ms or more."""
        for _ in range(last):
            with self.run.step() as s:
                batch = batch_of(s.step)
                s.batch(batch)
                loss, norm = self.shadow.step(batch)
                s.log(loss=loss, grad_norm=norm)
            self.shadow.verify()
            time.sleep(0.03)
            if s.step % 10 == 0 and until():
                return


def test_a_replay_that_fails_is_said_and_training_goes_on(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    loop = Loop(daemon, tmp_path, ())
    real = loop.shadow._job.evaluate

    def broken() -> Any:
        raise OSError("no held-out data")

    loop.shadow._job.evaluate = broken

    def failed() -> list[Any]:
        rows = daemon.get("/v1/runs/run-1/replays")
        return [row for row in rows if row["state"] == "failed"]

    loop.train(lambda: bool(failed()), 400)
    assert "no held-out data" in failed()[0]["fail_reason"]
    loop.shadow._job.evaluate = real
    loop.train(lambda: bool(windows(daemon, "quiet")), 400)
    loop.run.finish()
    loop.shadow.close()
    assert windows(daemon, "quiet")


def test_an_answer_waits_for_a_controller_that_is_away_and_the_loop_does_not(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    loop = Loop(daemon, tmp_path, ())
    real = loop.shadow._job.evaluate
    killed: list[bool] = []

    def evaluate() -> Any:
        if not killed:
            daemon.kill()
            killed.append(True)
        return real()

    loop.shadow._job.evaluate = evaluate
    loop.train(lambda: bool(killed), 400)
    begun = time.monotonic()
    loop.train(lambda: False, 10)
    assert time.monotonic() - begun < 2
    daemon.start()
    loop.train(lambda: bool(windows(daemon, "quiet")), 400)
    loop.run.finish()
    loop.shadow.close()
    first = daemon.get("/v1/runs/run-1/replays")[0]
    assert (first["state"], first["token"]) == ("done", 1), "its first lease"


def test_a_token_that_is_being_replaced_does_not_end_the_measuring(
    daemon: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    monkeypatch.setenv("GNOMON_TOKEN_FILE", str(token))
    ask = LeaseClient.ask
    taken: list[Any] = []

    def taken_away(its: LeaseClient, *arguments: Any) -> Any:
        found = ask(its, *arguments)
        if found is not None and not taken:
            taken.append(found)
            token.unlink()
        return found

    monkeypatch.setattr(LeaseClient, "ask", taken_away)
    loop = Loop(daemon, tmp_path, ())
    loop.train(lambda: bool(taken), 400)
    loop.train(lambda: False, 10)
    token.write_text("second\n")
    loop.train(lambda: bool(windows(daemon, "quiet")), 400)
    loop.run.finish()
    loop.shadow.close()
    assert windows(daemon, "quiet")


def windows(daemon: Daemon, state: str) -> list[dict[str, Any]]:
    runs = daemon.get("/v1/runs")
    rows = daemon.get("/v1/runs/run-1/windows") if runs else []
    return [row for row in rows if row["state"] == state]


@pytest.mark.parametrize("every", [20, 10])
def test_windows_are_measured_without_a_verifier(
    every: int, daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    if every == 10:
        daemon.stop()
        policy = tmp_path / "daemon" / "policy.toml"
        policy.write_text(policy.read_text().replace("every = 20", "every = 10"))
        daemon.start()
    loop = Loop(daemon, tmp_path, (), every)
    loop.train(lambda: len(windows(daemon, "quiet")) >= 2, 400)
    loop.run.finish()
    loop.shadow.close()
    for window in windows(daemon, "quiet"):
        assert window["d_percent"] is not None
        assert window["start_step"] % every == 0
    checkpoints = daemon.get("/v1/runs/run-1/checkpoints")
    assert all(row["uri"].startswith("memory:") for row in checkpoints)
    assert not [row for row in daemon.get("/v1/runs/run-1/replays") if row["state"] == "failed"]
    assert not list(tmp_path.glob("runs/shadow/spool/refused*"))


def test_a_fault_is_pinned_and_rolled_back_from_memory(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    fault = Fault(SITE, 61, 0, "scale_shift", "input", log2_factor=8)
    loop = Loop(daemon, tmp_path, (fault,))
    loop.train(lambda: bool(loop.rollbacks), 1500)
    assert loop.rollbacks
    assert loop.rollbacks[0].startswith("memory:")
    assert not plan_sites(loop.model)[SITE].choice.any_fp8
    loop.run.finish()
    loop.shadow.close()
    verdicts = [row["verdict"] for row in daemon.get("/v1/runs/run-1/decisions")]
    assert "fp8_numerics" in verdicts
    sentences = " ".join(row["sentence"] for row in daemon.get("/v1/runs/run-1/decisions"))
    assert "fingerprints differ" not in sentences  # the trainer's own replay is compared by bits
    assert daemon.get("/v1/runs/run-1")["attempts"][-1]["cause"] == "rollback"
