"""PlanLinear: each GEMM in its precision, live, against PyTorch's own products."""

from __future__ import annotations

import copy
from typing import cast

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

import torch
from torch import Tensor, nn
from torch_device import DEVICE

import gnomon
from gnomon.plan import PlanRule, PrecisionPlan
from gnomon.torch import (
    Fault,
    PlanLinear,
    adopt,
    arm,
    kernel_of,
    nudge,
    plan_sites,
    set_plan,
    set_step,
    site_name,
)
from gnomon.torch.scaled_gemm import multiply, multiply_emulated, quantize

FP8 = PrecisionPlan.fp8()


def make_model(dtype: torch.dtype = torch.bfloat16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 32), nn.GELU(), nn.Linear(32, 16, bias=False)).to(
        DEVICE, dtype
    )


def bits(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, the input's gradient and the weights' gradients of one pass."""
    model.zero_grad()
    leaf = x.clone().requires_grad_()
    output = model(leaf)
    output.float().pow(2).sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return [output.detach(), *[grad.clone() for grad in (leaf.grad, *grads) if grad is not None]]


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def far(a: Tensor, b: Tensor) -> float:
    """1 - 2⟨a,b⟩/(|a|² + |b|²): 0 for equal tensors."""
    a, b = a.double(), b.double()
    return float(1 - 2 * (a * b).sum() / (a.pow(2).sum() + b.pow(2).sum()))


X = torch.randn(40, 48, generator=torch.Generator().manual_seed(3)).to(DEVICE, torch.bfloat16)


@pytest.mark.parametrize("recipe", ["current", "tensorwise", "rowwise", "rowwise_gw_hp"])
def test_fp8_is_near_bf16_and_not_it(recipe: str) -> None:
    model = make_model()
    in_bf16 = bits(model, X)
    adopt(model, PrecisionPlan.fp8(recipe))
    in_fp8 = bits(model, X)
    for got, want in zip(in_fp8, in_bf16, strict=True):
        assert far(got, want) < 0.01
    assert not torch.equal(in_fp8[0], in_bf16[0])


def test_a_layer_may_get_no_rows() -> None:
    """As an expert that no token is sent to."""
    model = make_model()
    adopt(model, FP8)
    model(X[:0]).sum().backward()
    assert not any(
        parameter.grad is None or parameter.grad.any() for parameter in model.parameters()
    )


def test_a_plan_in_bf16_has_the_bits_of_nn_linear() -> None:
    model = make_model()
    want = bits(copy.deepcopy(model), X)
    adopt(model, PrecisionPlan.bf16())
    assert same_bits(bits(model, X), want)


@pytest.mark.parametrize(("gemm", "index"), [("fprop", 0), ("dgrad", 1), ("wgrad", -1)])
def test_one_gemm_alone_changes_its_own_product(gemm: str, index: int) -> None:
    model = nn.Sequential(nn.Linear(48, 32, bias=False)).to(DEVICE, torch.bfloat16)
    want = bits(model, X)
    rule = PlanRule("*", only=(gemm,), keys={"gemms": "fp8", "recipe": "current"})
    adopt(model, PrecisionPlan((rule,)))
    got = bits(model, X)
    assert not torch.equal(got[index], want[index])
    if gemm != "fprop":
        assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
@pytest.mark.parametrize("granularity", ["tensor", "row"])
def test_the_kernel_agrees_with_the_emulation(fmt: str, granularity: str) -> None:
    a = (torch.randn(33, 80) * torch.logspace(-3, 3, 33)[:, None]).to(DEVICE)
    b = torch.randn(24, 80).to(DEVICE)
    left = quantize(a, fmt, granularity)  # type: ignore[arg-type]
    right = quantize(b, "e4m3", granularity).t()  # type: ignore[arg-type]
    got = multiply(left, right, torch.float32)
    want = multiply_emulated(left, right, torch.float32)
    # The error of sums is relative to the sum of magnitudes. Hopper's tensor cores keep 13 bits
    # behind the point of the largest term while they add 32 terms up.
    relative = 1e-6 if DEVICE == "cpu" else 2.0**-12
    bound = relative * (left.dequantized().abs() @ right.dequantized().abs())
    assert ((got - want).abs() <= bound).all()
    in_bf16 = multiply(left, right, torch.bfloat16).float()
    assert ((in_bf16 - got).abs() <= 2.0**-8 * got.abs() + bound).all()


def test_the_real_kernel_runs_here_where_pytorch_has_it() -> None:
    if DEVICE == "cpu" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 15):
        pytest.skip("PyTorch has had FP8 products on the CPU in every shape since 2.15")
    assert kernel_of(DEVICE) == "scaled_mm"


def test_quantize_uses_the_whole_range_and_saturates() -> None:
    operand = quantize(torch.tensor([[3.0, -1.5], [0.0, 0.75]]), "e4m3")
    assert operand.values.float().abs().max() == 448
    assert torch.allclose(operand.dequantized(), torch.tensor([[3.0, -1.5], [0.0, 0.75]]))
    assert torch.equal(quantize(torch.zeros(2, 2), "e4m3").inverse_scale, torch.tensor(1.0))
    rows = quantize(torch.tensor([[3.0, 1.0], [0.0, 0.0]]), "e4m3", "row", power_of_two=True)
    assert torch.equal(rows.inverse_scale, torch.tensor([[1 / 128], [1.0]]))
    assert quantize(torch.tensor([[float("nan"), 1.0]]), "e4m3").dequantized().isnan().any()


def test_a_plan_changes_live_and_comes_back_to_the_bit() -> None:
    model = make_model()
    sites = adopt(model, FP8)
    assert sites == ["0", "2"]
    first = bits(model, X)
    set_plan(model, FP8.with_bf16_sites(["2"]))
    pinned = bits(model, X)
    assert not same_bits(first, pinned)
    assert not plan_sites(model)["2"].choice.any_fp8
    set_plan(model, FP8)
    assert same_bits(bits(model, X), first)


def test_adopting_keeps_parameters_and_what_the_optimizer_holds() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    before = [id(parameter) for parameter in model.parameters()]
    adopt(model, FP8)
    assert [id(parameter) for parameter in model.parameters()] == before
    assert isinstance(model[0], PlanLinear)
    weight = model[0].weight.detach().clone()
    bits(model, X)
    optimizer.step()
    assert not torch.equal(model[0].weight, weight)


def test_a_plan_that_cannot_be_run_is_rejected_and_changes_nothing() -> None:
    model = make_model()
    adopt(model, FP8)
    before = bits(model, X)
    for text, why in [
        ('[[rule]]\nmatch = "*"\ngemms = "fp8"\nrecipe = "block"\n', 'recipe "block"'),
        ('[[rule]]\nmatch = "*"\ngemms = "fp8"\nforward_format = "e3m2"\n', 'format "e3m2"'),
        ('[[rule]]\nmatch = "no.such.site"\ngemms = "fp8"\n', "no.such.site"),
        ('[[rule]]\nmatch = "*"\nmoments = "fp8"\n', "moment"),
        ('[[rule]]\nmatch = "*"\ngemms = "fp8"\naccumulate = "hopper"\n', "accumulate"),
    ]:
        with pytest.raises(gnomon.Rejected, match=why):
            set_plan(model, PrecisionPlan.parse(text))
    assert same_bits(bits(model, X), before)
    with pytest.raises(gnomon.Rejected, match="adopt"):
        set_plan(nn.Sequential(nn.Linear(2, 2)), FP8)


def test_a_layer_of_another_kind_is_an_error() -> None:
    class Own(nn.Linear):
        pass

    with pytest.raises(gnomon.ConfigError, match="Own"):
        adopt(nn.Sequential(Own(4, 4)), FP8)
    assert adopt(nn.Sequential(Own(4, 4), nn.Linear(4, 4)), FP8, skip=["0"]) == ["1"]


def test_last_is_the_last_layer() -> None:
    model = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])})
    plan = FP8.with_bf16_sites([])
    pin = PlanRule("layers.{0,last}", keys={"gemms": "bf16"})
    adopt(model, PrecisionPlan((*plan.rules, pin)))
    fp8 = [module.choice.any_fp8 for module in plan_sites(model).values()]
    assert fp8 == [False, True, False]


def test_names_are_those_of_the_unwrapped_model() -> None:
    assert site_name("module._orig_mod.model.layers.0.mlp.up_proj") == "model.layers.0.mlp.up_proj"
    assert site_name("model._orig_mod.layers.0._checkpoint_wrapped_module.q") == "model.layers.0.q"
    assert site_name("model.module_list.0") == "model.module_list.0"


def test_autocast_computes_in_its_dtype_and_keeps_gradients_in_fp32() -> None:
    model = make_model(torch.float32)
    adopt(model, FP8)
    with torch.autocast(DEVICE, torch.bfloat16):
        output = model(X.float())
    output.float().sum().backward()
    assert output.dtype == torch.bfloat16
    grad = model[0].weight.grad
    assert isinstance(grad, Tensor)
    assert grad.dtype == torch.float32


# ---- arms and faults ----


def test_arms_come_and_go_without_a_trace() -> None:
    model = make_model()
    want = bits(copy.deepcopy(model), X)
    adopt(model, FP8)
    in_fp8 = bits(model, X)
    with arm(model, "bf16"):
        assert same_bits(bits(model, X), want)
    with arm(model, "plan", FP8.with_bf16_sites(["0", "2"])):
        assert same_bits(bits(model, X), want)
    for name in ("same", "eager"):
        with arm(model, name):
            assert same_bits(bits(model, X), in_fp8)
    with pytest.raises(RuntimeError, match="in the arm"), arm(model, "bf16"):
        raise RuntimeError("in the arm")
    assert same_bits(bits(model, X), in_fp8)
    with pytest.raises(ValueError, match="scores"), arm(model, "scores"):
        pass


def test_fakequant_feels_the_numbers_and_not_the_kernel() -> None:
    model = make_model()
    want = bits(copy.deepcopy(model), X)
    adopt(model, FP8)
    healthy = bits(model, X)
    scale = Fault("0", 5, 7, "scale_shift", "input", log2_factor=7)
    kernel = Fault("0", 5, 7, "dropped_k_block", terms=16)
    for fault, felt in ((scale, True), (kernel, False)):
        set_step(model, 5, [fault])
        assert far(bits(model, X)[0], want[0]) > 0.05
        with arm(model, "fakequant"):
            assert (far(bits(model, X)[0], want[0]) > 0.05) == felt
        with arm(model, "bf16"):
            assert same_bits(bits(model, X), want)
        set_step(model, 7, [fault])
        assert same_bits(bits(model, X), healthy)


@pytest.mark.parametrize(("tensor", "index"), [("weight", 0), ("gradient", 1)])
def test_a_shifted_scale_is_felt_where_its_tensor_is_read(tensor: str, index: int) -> None:
    model = make_model()
    adopt(model, FP8)
    healthy = bits(model, X)
    fault = Fault("2", 1, 0, "scale_shift", tensor, log2_factor=8)  # type: ignore[arg-type]
    set_step(model, 1_000_000, [fault])
    assert far(bits(model, X)[index], healthy[index]) > 0.05
    if tensor == "gradient":
        assert torch.equal(bits(model, X)[0], healthy[0])


def test_a_fault_is_recorded_as_it_is() -> None:
    record = Fault("0", 3, 9, "scale_shift", "input", log2_factor=6).record()
    assert (record.kind, record.site, record.start_step, record.end_step) == (
        "scale_shift",
        "0",
        3,
        9,
    )
    assert record.description == "the scale of the input is off by 2^6"
    model = make_model()
    adopt(model, FP8)
    with pytest.raises(gnomon.ConfigError, match="nowhere"):
        set_step(model, 3, [Fault("nowhere", 1)])


def test_a_nudge_is_small_and_a_function_of_its_seed() -> None:
    models = [make_model(torch.float32) for _ in range(4)]
    for model, seed in zip(models[1:], (7, 7, 8), strict=True):
        nudge(model, seed)
    weights = [next(model.parameters()).detach() for model in models]
    assert torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[1], weights[3])
    relative = (weights[1] / weights[0] - 1).std()
    assert 0.8 * 2**-9 < float(relative) < 1.2 * 2**-9
    with torch.device("meta"):  # a user's default device, which no random number may come from
        nudge(models[0], 7)
    assert torch.equal(next(models[0].parameters()), weights[1])


def test_compiled_a_plan_costs_one_compilation_and_eager_none() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    model = make_model()
    adopt(model, FP8)
    compiled = cast(nn.Module, torch.compile(model, backend=counter, fullgraph=True))
    first = bits(compiled, X)
    assert same_bits(first, bits(model, X))
    assert counter.frame_count == 1
    set_plan(model, FP8.with_bf16_sites(["2"]))
    assert same_bits(bits(compiled, X), bits(model, X))
    assert counter.frame_count == 2
    set_plan(model, FP8)
    assert same_bits(bits(compiled, X), first)
    with arm(compiled, "eager", FP8.with_bf16_sites(["0"])):
        bits(compiled, X)
    assert counter.frame_count == 2
