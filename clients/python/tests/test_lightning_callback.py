"""GnomonCallback of Lightning: a real Trainer under a real gnomond."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[lightning]'")
pytest.importorskip("lightning", reason="needs pip install 'gnomon-client[lightning]'")

import torch
from daemon import Daemon, wait_for
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional

import gnomon
from gnomon.lightning import GnomonCallback
from gnomon.plan import PrecisionPlan
from gnomon.torch import adopt, plan_sites, set_plan, weights_hash

PLAN = PrecisionPlan.fp8()


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 8)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return functional.cross_entropy(self.down(self.up(x).relu()), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def loader() -> Any:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 16, generator=generator)
    data = torch.utils.data.TensorDataset(x, x[:, :8].argmax(dim=1))
    return torch.utils.data.DataLoader(data, batch_size=4)


def fit(
    daemon: Daemon, folder: pathlib.Path, steps: int, *callbacks: Callback, **options: Any
) -> tuple[Module, gnomon.Run]:
    module = Module()
    adopt(module, PLAN)
    run = gnomon.init(
        project="test",
        name="lightning",
        url=daemon.url,
        sites=list(plan_sites(module)),
        plan=PLAN,
        framework="pytorch",
        checkpoint_format="lightning",
        checkpoint_every=4,
        capabilities=gnomon.Capabilities(rollback="restart"),
        directory=folder / "runs",
        on_plan=lambda plan: set_plan(module, plan),
    )
    saver = ModelCheckpoint(folder / "checkpoints", every_n_train_steps=4, save_top_k=-1)
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[GnomonCallback(run), *callbacks, saver],
        **options,
    )
    resume = run.resume_from
    with run:  # which ends its threads where the training fails
        trainer.fit(module, loader(), ckpt_path=resume.checkpoint if resume is not None else None)
    return module, run


def test_every_step_and_checkpoint_is_reported(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    module, run = fit(daemon, tmp_path, 8)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert len({step["loss"] for step in steps}) == 8
    assert all(step["grad_norm"] > 0 and step["learning_rate"] == 0.01 for step in steps)
    assert len({step["batch_hash"] for step in steps}) == 8
    checkpoints = daemon.get(f"/v1/runs/{run.id}/checkpoints")
    assert [each["step"] for each in checkpoints] == [4, 8]
    assert checkpoints[-1]["weights_hash"] == weights_hash(module)
    for each in checkpoints:
        saved = torch.load(each["uri"], weights_only=False)
        assert saved["global_step"] == each["step"]
    assert daemon.get(f"/v1/runs/{run.id}")["state"] == "completed"


def test_accumulated_batches_are_one_step_with_their_mean_loss(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    _, run = fit(daemon, tmp_path, 2, accumulate_grad_batches=2)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    module = Module()
    adopt(module, PLAN)
    batches = list(loader())
    want = sum(module.training_step(batches[i], i).item() for i in (0, 1)) / 2
    assert [step["step"] for step in steps] == [1, 2]
    assert steps[0]["loss"] == pytest.approx(want, rel=1e-6)


def leave_out(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """Has the module return no loss for this batch."""
    whole = Module.training_step

    def skips(its: Module, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == index else whole(its, batch, batch_idx)

    monkeypatch.setattr(Module, "training_step", skips)


def test_a_batch_that_is_left_out_ends_nothing(
    daemon: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, 2)
    _, run = fit(daemon, tmp_path, 8)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [step["step"] for step in steps] == [1, 2, 4, 5, 6, 7, 8]
    checkpoints = daemon.get(f"/v1/runs/{run.id}/checkpoints")
    assert [each["step"] for each in checkpoints] == [4, 8]
    (notice,) = daemon.get(f"/v1/runs/{run.id}/notices")
    assert (notice["kind"], "steps 3 to 3" in notice["text"]) == ("reports_dropped", True)
    assert daemon.get(f"/v1/runs/{run.id}")["state"] == "completed"


def test_a_batch_that_is_left_out_of_a_step_leaves_the_others(
    daemon: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, 0)
    _, run = fit(daemon, tmp_path, 2, accumulate_grad_batches=2)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [step["step"] for step in steps] == [1, 2]
    assert steps[0]["loss"] > 0


def test_the_loss_is_the_mean_of_all_ranks(
    daemon: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnomon.lightning.mean_of_ranks", lambda loss: loss + 100, raising=False)
    _, run = fit(daemon, tmp_path, 2)
    assert all(step["loss"] > 100 for step in daemon.get(f"/v1/runs/{run.id}/steps"))


def test_a_plan_takes_effect_live(daemon: Daemon, tmp_path: pathlib.Path) -> None:

    class Pin(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
            time.sleep(0.02)
            if trainer.global_step == 2:
                run = wait_for(lambda: daemon.get("/v1/runs"), 20)[0]["run"]
                plan = PLAN.with_bf16_sites(["up"]).to_toml()
                daemon.override("set_plan", run, plan=plan, expires_seconds=600)
            elif not plan_sites(pl_module)["up"].choice.any_fp8:
                trainer.should_stop = True

    _, run = fit(daemon, tmp_path, 1000, Pin())
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert 2 < len(steps) < 1000
    assert steps[1]["plan_version"] == 0
    assert steps[-1]["plan_version"] > 0
    assert daemon.get(f"/v1/runs/{run.id}")["state"] == "stopped"


def test_a_restart_goes_on_where_the_checkpoint_is(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    class Crash(Callback):
        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            if trainer.global_step == 6:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        fit(daemon, tmp_path, 8, Crash())
    _, run = fit(daemon, tmp_path, 8)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    again = [step["step"] for step in steps if step["attempt"] == 2]
    assert again == [5, 6, 7, 8]
    assert daemon.get(f"/v1/runs/{run.id}")["state"] == "completed"
