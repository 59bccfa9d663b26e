"""The live pin of torchao's Float8Linear. check_torchao.py runs this with several versions."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")
pytest.importorskip("torchao", reason="needs torchao: pip install torchao")

import torch
from torch import Tensor, nn
from torch_device import DEVICE
from torch_job import batch_of, make_evaluate, make_parts, make_step
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

import gnomon
from gnomon.plan import PlanRule, PrecisionPlan
from gnomon.torch import Shadow
from gnomon.torch.float8_pin import Float8Pin, PinnableFloat8Linear

RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp"]
X = torch.randn(32, 64, generator=torch.Generator().manual_seed(3)).to(DEVICE, torch.bfloat16)


def make_model(recipe: str) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32), nn.Linear(32, 16)]
    model: nn.Module = nn.Sequential(*layers).to(DEVICE, torch.bfloat16)
    convert_to_float8_training(
        model,
        config=Float8LinearConfig.from_recipe_name(recipe),
        module_filter_fn=lambda module, name: name != "3",
    )
    return model


def bits(model: Any, x: Tensor = X) -> list[Tensor]:
    for parameter in model.parameters():
        parameter.grad = None
    leaf = x.clone().requires_grad_()
    output = model(leaf)
    output.float().pow(2).sum().backward()
    grads = [leaf.grad, *[parameter.grad for parameter in model.parameters()]]
    return [output.detach(), *[grad.clone() for grad in grads if grad is not None]]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def is_pinned(model: nn.Module, site: str) -> bool:
    module = model.get_submodule(site)
    assert isinstance(module, PinnableFloat8Linear)
    return module.pinned


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_pin_is_bf16_and_fp8_comes_back_to_the_bit(recipe: str) -> None:
    model = make_model(recipe)
    pin = Float8Pin(model)
    assert pin.sites == ["0", "2", "3"]
    assert pin.recipe == recipe
    before = bits(model)
    identities = [id(parameter) for parameter in model.parameters()]
    plain = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 32), nn.Linear(32, 16))
    plain.to(DEVICE, torch.bfloat16).load_state_dict(model.state_dict())
    pin.set_plan(pin.plan)
    assert same(bits(model), before)
    pin.set_plan(pin.plan.with_bf16_sites(["0", "2"]))
    assert same(bits(model), bits(plain))
    assert not same(bits(model), before)
    pin.set_plan(pin.plan.with_bf16_sites(["2"]))
    assert (is_pinned(model, "0"), is_pinned(model, "2")) == (False, True)
    pin.set_plan(pin.plan)
    assert same(bits(model), before)
    assert [id(parameter) for parameter in model.parameters()] == identities


def test_an_optimizer_and_a_checkpoint_see_no_difference() -> None:
    model = make_model("rowwise")
    pin = Float8Pin(model)
    optimizer = torch.optim.AdamW(model.parameters())
    names = list(model.state_dict())
    pin.set_plan(pin.plan.with_bf16_sites(["0"]))
    bits(model)
    optimizer.step()
    assert list(model.state_dict()) == names
    assert len(optimizer.state) == len(list(model.parameters()))


def test_the_arm_bf16_leaves_no_trace() -> None:
    model = make_model("tensorwise")
    pin = Float8Pin(model)
    before = bits(model)
    with pin.arm("bf16"):
        assert not same(bits(model), before)
    with pin.arm("same"):
        assert same(bits(model), before)
    with pytest.raises(ValueError, match="fakequant"), pin.arm("fakequant"):
        pass
    assert same(bits(model), before)


def test_a_plan_that_torchao_cannot_run_is_rejected_and_changes_nothing() -> None:
    model = make_model("rowwise")
    pin = Float8Pin(model)
    before = bits(model)
    wgrad = PlanRule("0", only=("wgrad",), keys={"gemms": "bf16"})
    for plan, why in [
        (PrecisionPlan((*pin.plan.rules, wgrad)), "one precision"),
        (PrecisionPlan.fp8("current").with_bf16_sites(["3"]), "torchao made it rowwise"),
        (PrecisionPlan.fp8("rowwise"), "3 is no Float8Linear"),
        (PrecisionPlan.parse('[[rule]]\nmatch = "nowhere"\ngemms = "fp8"\n'), "nowhere"),
    ]:
        with pytest.raises(gnomon.Rejected, match=why):
            pin.set_plan(plan)
    assert same(bits(model), before)


def test_names_of_our_recipes_are_understood() -> None:
    pin = Float8Pin(make_model("tensorwise"))
    pin.set_plan(PrecisionPlan.fp8("current").with_bf16_sites(["3"]))
    pin = Float8Pin(make_model("rowwise_with_gw_hp"))
    pin.set_plan(PrecisionPlan.fp8("rowwise_gw_hp").with_bf16_sites(["3"]))


def test_a_model_without_such_layers_is_an_error() -> None:
    with pytest.raises(gnomon.ConfigError, match="convert_to_float8_training"):
        Float8Pin(nn.Sequential(nn.Linear(4, 4)))


def test_a_shadow_measures_a_run_of_torchao() -> None:
    model, optimizer, scheduler = make_parts()
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("tensorwise"))
    pin = Float8Pin(model)
    shadow = Shadow(
        model,
        optimizer,
        scheduler,
        train_step=make_step(model, optimizer, scheduler),
        evaluate=make_evaluate(model),
        every=6,
        steps=6,
        arms=("bf16", "same"),
        use_arm=pin.arm,
    )
    for step in range(1, 7):
        shadow.step(batch_of(step))
    window = shadow.verify()
    assert window is not None
    assert window.reproduces("same")
    assert not window.reproduces("bf16")
    assert abs(window.gap_percent) < 0.5
    pinned = pin.plan.with_bf16_sites(["layers.0.up_proj"])
    with pin.arm("plan", pinned):
        assert is_pinned(model, "layers.0.up_proj")
    assert not is_pinned(model, "layers.0.up_proj")


def test_compiled_a_pin_costs_one_compilation() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    model = make_model("tensorwise")
    pin = Float8Pin(model)
    compiled = cast(nn.Module, torch.compile(model, backend=counter))
    first = bits(compiled)
    one = counter.frame_count
    pin.set_plan(pin.plan.with_bf16_sites(["0"]))
    assert same(bits(compiled), bits(model))
    assert counter.frame_count == 2 * one
    pin.set_plan(pin.plan)
    assert same(bits(compiled), first)
    assert counter.frame_count == 2 * one
