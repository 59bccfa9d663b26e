"""GnomonCallback: a real `transformers.Trainer` under a real gnomond."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[transformers]'")
pytest.importorskip("transformers", reason="needs pip install 'gnomon-client[transformers]'")

import torch
from daemon import Daemon, wait_for
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import gnomon
from gnomon.plan import PrecisionPlan
from gnomon.torch import adopt, plan_sites, set_plan, weights_hash
from gnomon.transformers import GnomonCallback

PLAN = PrecisionPlan.fp8()
MLP = "model.layers.0.mlp.down_proj"


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16,
        )
    )
    adopt(model, PLAN)
    return model


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = torch.arange(index, index + 16) % 64
        return {"input_ids": tokens, "labels": tokens}


def train(
    daemon: Daemon,
    folder: pathlib.Path,
    steps: int,
    name: str = "hf",
    callbacks: tuple[Any, ...] = (),
    model: LlamaForCausalLM | None = None,
    **options: Any,
) -> tuple[Trainer, gnomon.Run]:
    model = model or make_model()
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=4,
        save_steps=4,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    run = gnomon.init(
        project="test",
        name=name,
        url=daemon.url,
        sites=list(plan_sites(model)),
        plan=PLAN,
        framework="pytorch",
        checkpoint_format="transformers",
        checkpoint_every=4,
        capabilities=gnomon.Capabilities(rollback="restart"),
        directory=folder / "runs",
        on_plan=lambda plan: set_plan(model, plan),
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
    for callback in (GnomonCallback(run), *callbacks):
        trainer.add_callback(callback)
    resume = run.resume_from
    with run:  # which ends its threads where the training fails
        trainer.train(resume_from_checkpoint=resume.checkpoint if resume is not None else None)
    return trainer, run


def test_every_step_and_checkpoint_is_reported(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    trainer, run = train(daemon, tmp_path, 8, logging_steps=4)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert all(step["grad_norm"] > 0 for step in steps)
    assert all(step["batch_hash"] for step in steps)
    assert [bool(step["weights_hash"]) for step in steps] == [False] * 3 + [True] + [False] * 3 + [
        True
    ]
    assert trainer.model is not None
    assert steps[-1]["weights_hash"] == weights_hash(trainer.model)
    checkpoints = daemon.get(f"/v1/runs/{run.id}/checkpoints")
    assert [each["step"] for each in checkpoints] == [4, 8]
    assert checkpoints[-1]["weights_hash"] == steps[-1]["weights_hash"]
    assert pathlib.Path(checkpoints[-1]["uri"], "model.safetensors").exists()
    assert daemon.get(f"/v1/runs/{run.id}")["state"] == "completed"
    # What the arguments asked for, and the Trainer's own line at the end.
    assert [each["step"] for each in trainer.state.log_history if "loss" in each] == [4, 8]


def test_accumulated_batches_are_one_step(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    _, run = train(daemon, tmp_path, 4, gradient_accumulation_steps=2)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert len({step["batch_hash"] for step in steps}) == 4


def test_nan_is_reported_as_nan(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    model = make_model()
    with torch.no_grad():
        next(model.parameters())[:] = float("nan")
    _, run = train(daemon, tmp_path, 2, model=model)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [step["loss"] for step in steps] == [None, None]  # NaN in a row is null


def test_a_plan_takes_effect_live(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    model = make_model()

    class Pin(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            time.sleep(0.02)
            if state.global_step == 2:
                run = wait_for(lambda: daemon.get("/v1/runs"), 20)[0]["run"]
                plan = PLAN.with_bf16_sites([MLP]).to_toml()
                daemon.override("set_plan", run, plan=plan, expires_seconds=600)
            elif not plan_sites(model)[MLP].choice.any_fp8:
                control.should_training_stop = True

    _, run = train(daemon, tmp_path, 1000, callbacks=(Pin(),), model=model)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert 2 < len(steps) < 1000
    assert steps[1]["plan_version"] == 0
    assert steps[-1]["plan_version"] > 0
    assert steps[-2]["plan_version"] == 0
    assert daemon.get(f"/v1/runs/{run.id}")["state"] == "stopped"


def test_a_restart_goes_on_where_the_checkpoint_is(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    class Crash(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(daemon, tmp_path, 8, callbacks=(Crash(),))
    _, run = train(daemon, tmp_path, 8)
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [(step["attempt"], step["step"]) for step in steps][-4:] == [
        (2, 5),
        (2, 6),
        (2, 7),
        (2, 8),
    ]
    first = {step["step"]: step["loss"] for step in steps if step["attempt"] == 1}
    again = {step["step"]: step["loss"] for step in steps if step["attempt"] == 2}
    assert again[5] == first[5]
