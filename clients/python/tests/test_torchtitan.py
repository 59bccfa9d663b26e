"""LiveGemms on TorchTitan's own layers, and `supervise` on what its Trainer calls."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("torchtitan", reason="needs pip install torchtitan")

import torch
from daemon import Daemon
from torch import Tensor, nn
from torch.nn import functional
from torchao.float8.config import Float8LinearConfig
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.quantization.float8 import Float8Linear, Float8LinearConverter
from torchtitan.models.llama3 import model_registry
from torchtitan.protocols.module import Module
from torchtitan.trainer import Trainer

import gnomon
from gnomon import ConfigError, PrecisionPlan, Rejected
from gnomon.torchtitan import LiveGemms, supervise

SITE = "layers.0.w1"


def make(recipe: str) -> nn.Module:
    """A TorchTitan Float8Linear of this recipe, whose forward pass is bound as `parallelize` does.
    Its GEMMs are emulated: torchao's CPU path has no rowwise product.
    """
    torch.manual_seed(0)
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    made = Float8Linear.Config(in_features=32, out_features=48, _torchao_config=config).build()
    bound = made.forward
    made.forward = bound
    return nn.ModuleDict({"layers": nn.ModuleList([nn.ModuleDict({"w1": made})])})


def products(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """The results of fprop, dgrad and wgrad."""
    layer: Any = model.get_submodule(SITE)
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    layer.weight.grad = None
    y = layer(x)
    torch.autograd.backward(y, torch.randn(16, 48, generator=torch.Generator().manual_seed(2)))
    assert x.grad is not None
    return y.detach(), x.grad, layer.weight.grad


def plain(model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """The same without FP8."""
    layer: Any = model.get_submodule(SITE)
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    dy = torch.randn(16, 48, generator=torch.Generator().manual_seed(2))
    return functional.linear(x, layer.weight), dy @ layer.weight, (dy.t() @ x)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_fp8_is_taken_from_each_gemm_and_given_back(recipe: str) -> None:
    model = make(recipe)
    live = LiveGemms([model])
    assert live.sites == [SITE]
    assert live.recipe == recipe
    in_fp8, in_high = products(model), plain(model)
    usual = [True, True, recipe != "rowwise_with_gw_hp"]
    for got, high, fp8 in zip(in_fp8, in_high, usual, strict=True):
        assert torch.allclose(got, high, rtol=1e-5, atol=1e-5) is not fp8
    for pinned, gemm in enumerate(("fprop", "dgrad", "wgrad")):
        keys = f'match = "{SITE}"\n{gemm} = "bf16"\n'
        live.set_plan(PrecisionPlan.parse(f"{live.plan.to_toml()}\n[[rule]]\n{keys}"))
        now = products(model)
        for i in range(3):
            if i == pinned:
                assert torch.allclose(now[i], in_high[i], rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(now[i], in_fp8[i])
    live.set_plan(live.plan.with_bf16_sites([SITE]))
    for got, high in zip(products(model), in_high, strict=True):
        assert torch.allclose(got, high, rtol=1e-5, atol=1e-5)
    live.set_plan(live.plan)
    assert all(map(torch.equal, products(model), in_fp8))


def test_an_exchanged_class_has_no_effect_on_a_bound_forward() -> None:
    model = make("rowwise")
    before = products(model)
    model.get_submodule(SITE).__class__ = nn.Linear
    assert torch.equal(products(model)[0], before[0])
    text = inspect.getsource(Module.parallelize)
    assert "self._maybe_wrap_with_local_region(self.forward" in text
    assert "self.forward = forward_with_redistribution" in text


def test_what_its_layers_cannot_do_is_rejected() -> None:
    model = make("rowwise")
    live = LiveGemms([model, nn.ModuleDict({"lm_head": nn.Linear(32, 32)})])
    pinned = live.plan.with_bf16_sites([SITE])
    live.set_plan(pinned)
    for plan in (
        PrecisionPlan.fp8("tensorwise").with_bf16_sites(["lm_head"]),
        PrecisionPlan.fp8("rowwise"),  # lm_head is none of its layers
        PrecisionPlan.parse(pinned.to_toml() + '\n[[rule]]\nmatch = "*"\nmoments = "bf16"\n'),
        PrecisionPlan.parse('[[rule]]\nmatch = "layers.7.*"\ngemms = "bf16"\n'),
    ):
        with pytest.raises(Rejected):
            live.set_plan(plan)
    assert torch.allclose(products(model)[0], plain(model)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="Float8LinearConverter"):
        LiveGemms([nn.ModuleDict({"lm_head": nn.Linear(32, 32)})])


def test_the_converter_with_emulation_forgets_the_recipe() -> None:
    for recipe in ("rowwise", "rowwise_with_gw_hp"):
        converter = Float8LinearConverter.Config(emulate=True, recipe_name=recipe)
        with torch.device("meta"):
            model = model_registry("debugmodel", converters=[converter]).model.build()
        live = LiveGemms([model])
        assert live.recipe == "tensorwise"
        assert "layers.0.feed_forward.w1" in live.sites


class FakeTrainer:
    """What `supervise` touches of a Trainer, called as TorchTitan's `train` and `train_step` do."""

    def __init__(self, folder: pathlib.Path, log_freq: int = 1) -> None:
        self.step = 0
        self.config = SimpleNamespace(metrics=SimpleNamespace(log_freq=log_freq))
        self.logged: list[int] = []
        self.metrics_processor = SimpleNamespace(log=self.log)
        self.checkpointer = SimpleNamespace(
            save=self.save,
            save_future=None,
            last_save_model_only=True,
            _create_checkpoint_id=lambda step: str(folder / f"step-{step}"),
        )

    def log(self, step: int, *rest: Any, **more: Any) -> None:
        self.logged.append(step)

    def save(self, curr_step: int, last_step: bool = False) -> bool:
        return curr_step % 2 == 0

    def train_step(self, data_iterator: Any) -> None:
        for _ in range(2):
            next(data_iterator)
        metrics: Any = {}
        self.metrics_processor.log(self.step, 1.0 / self.step, 2.0, 0.5, extra_metrics=metrics)

    def train(self, steps: int) -> None:
        numbers = [torch.tensor([i]) for i in range(2 * steps)]
        data = iter([({"input": each}, each + 1) for each in numbers])
        while self.step < steps:
            self.step += 1
            self.train_step(data)
            self.checkpointer.save(self.step, last_step=self.step == steps)


def test_the_trainers_steps_are_reported(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    trainer = FakeTrainer(tmp_path)
    run = gnomon.init(
        project="test", name="titan", url=daemon.url, sites=[SITE], plan=PrecisionPlan.fp8(),
        directory=tmp_path / "runs",
    )  # fmt: skip
    supervise(trainer, run)
    trainer.train(6)
    run.finish()
    steps = daemon.get(f"/v1/runs/{run.id}/steps")
    assert [step["loss"] for step in steps] == [1.0 / i for i in range(1, 7)]
    assert all(step["grad_norm"] == 0.5 for step in steps)
    assert len({step["batch_hash"] for step in steps}) == 6
    checkpoints = daemon.get(f"/v1/runs/{run.id}/checkpoints")
    assert [each["step"] for each in checkpoints] == [2, 4]  # the last is a model alone
    assert trainer.logged == list(range(1, 7))
    with pytest.raises(ConfigError, match="log_freq"):
        supervise(FakeTrainer(tmp_path, log_freq=10), run)


def test_the_trainer_has_what_supervise_touches() -> None:
    def parameters(function: Any) -> list[str]:
        return list(inspect.signature(function).parameters)

    assert parameters(Trainer.train_step) == ["self", "data_iterator"]
    assert parameters(MetricsProcessor.log)[:5] == [
        *("self", "step", "global_avg_loss", "global_max_loss", "grad_norm"),
    ]
    assert parameters(CheckpointManager.save) == ["self", "curr_step", "last_step"]
    assert parameters(CheckpointManager._create_checkpoint_id)[:2] == ["self", "step"]
    train = inspect.getsource(Trainer.train)
    assert train.index("self.step += 1") < train.index("self.train_step(data_iterator)")
    assert train.index("self.train_step(data_iterator)") < train.index("self.checkpointer.save(")
    made = inspect.getsource(CheckpointManager.__init__)
    assert "self.save_future" in made
    assert "self.last_save_model_only" in made
