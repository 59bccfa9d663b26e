"""A linear layer whose three GEMMs each run in the precision that a plan gives them.

fprop is y = x · Wᵀ, dgrad is dx = dy · W, wgrad is dW = dyᵀ · x. Where the plan says FP8, operands
are rounded as docs/recipes.md says and multiplied by `torch._scaled_mm`; elsewhere the product is
PyTorch's own. `adopt` turns the linear layers of a model into these by exchanging their class, so
that parameters, hooks and what an optimizer holds stay the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gnomon.errors import ConfigError, Rejected
from gnomon.model import layers_of
from gnomon.plan import BF16, GemmPrecision, PrecisionPlan
from gnomon.torch.faults import Fault
from gnomon.torch.scaled_gemm import (
    FORMATS,
    Granularity,
    Operand,
    multiply,
    multiply_emulated,
    quantize,
)

# Recipes of plans, and what they are here. Those of torchao are the same arithmetic.
RECIPES = {
    "current": "tensor",
    "tensorwise": "tensor",
    "rowwise": "rows",
    "rowwise_gw_hp": "rows, weight whole",
    "rowwise_with_gw_hp": "rows, weight whole",
}

# What wraps put in front of a module's name: DDP, torch.compile, activation checkpointing.
_WRAPPERS = ("module.", "_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True)
class SiteChoice:
    """How the three GEMMs of a site run, and which fault acts there now."""

    fprop: GemmPrecision = BF16
    dgrad: GemmPrecision = BF16
    wgrad: GemmPrecision = BF16
    emulated: bool = False  # the same FP8 values without the FP8 kernel
    fault: Fault | None = None

    @property
    def any_fp8(self) -> bool:
        """Whether one of the three runs in FP8."""
        return self.fprop.fp8 or self.dgrad.fp8 or self.wgrad.fp8


class PlanLinear(nn.Linear):
    """A linear layer under a plan. `choice` is what it runs in; `adopt` and `set_plan` set it."""

    site: str
    choice: SiteChoice

    def __init__(self, *args: Any, site: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.site = site
        self.choice = SiteChoice()

    def forward(self, input: Tensor) -> Tensor:
        """Maps [..., in_features] to [..., out_features]."""
        choice = self.choice
        if not choice.any_fp8 or input.numel() == 0:  # an expert may get no tokens
            return super().forward(input)
        kind = input.device.type
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = bias if bias is None else bias.to(dtype)
        with torch.autocast(kind, enabled=False):
            rows = input.reshape(-1, input.shape[-1])
            product = cast(Tensor, _PlannedProduct.apply(rows, weight, choice))
            output = product.reshape(*input.shape[:-1], weight.shape[0])
            return output if bias is None else output + bias


class _PlannedProduct(torch.autograd.Function):
    """y = x · Wᵀ for x [n, in] and W [out, in], each of the three GEMMs by its choice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, choice: SiteChoice) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.choice = choice
        how = choice.fprop
        if not how.fp8:
            return x @ weight.t()
        left = _rounded(x, how, how.forward_format, "row", choice, "input")
        right = _rounded(weight, how, how.forward_format, "row", choice, "weight").t()
        if choice.fault is not None and choice.fault.kind == "dropped_k_block":
            left = _without_terms(left, choice)
        return _product(left, right, x.dtype, choice, fast=True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        choice: SiteChoice = ctx.choice
        dx = _dgrad(dy, weight, choice) if ctx.needs_input_grad[0] else None
        dw = _wgrad(dy, x, choice) if ctx.needs_input_grad[1] else None
        return dx, dw, None


def _dgrad(dy: Tensor, weight: Tensor, choice: SiteChoice) -> Tensor:
    how = choice.dgrad
    if not how.fp8:
        return dy @ weight
    left = _rounded(dy, how, how.gradient_format, "row", choice, "gradient")
    whole = RECIPES[how.recipe] == "rows, weight whole"
    of_weight: Granularity = "tensor" if whole else "column"
    right = _rounded(weight, how, how.forward_format, of_weight, choice, "weight")
    return _product(left, right, dy.dtype, choice)


def _wgrad(dy: Tensor, x: Tensor, choice: SiteChoice) -> Tensor:
    how = choice.wgrad
    if not how.fp8:
        return dy.t() @ x
    left = _rounded(dy, how, how.gradient_format, "column", choice, "gradient").t()
    right = _rounded(x, how, how.forward_format, "column", choice, "input")
    return _product(left, right, dy.dtype, choice)


def _rounded(
    x: Tensor, how: GemmPrecision, fmt: str, tile: Granularity, choice: SiteChoice, tensor: str
) -> Operand:
    fault = choice.fault
    shifted = fault is not None and fault.kind == "scale_shift" and fault.tensor == tensor
    granularity: Granularity = "tensor" if RECIPES[how.recipe] == "tensor" else tile
    log2_factor = fault.log2_factor if fault is not None and shifted else 0
    return quantize(x, fmt, granularity, how.power_of_two, log2_factor)


def _product(
    a: Operand, b: Operand, out_dtype: torch.dtype, choice: SiteChoice, fast: bool = False
) -> Tensor:
    if choice.emulated:
        return multiply_emulated(a, b, out_dtype)
    return multiply(a, b, out_dtype, fast)


def _without_terms(left: Operand, choice: SiteChoice) -> Operand:
    """Returns the operand with zeros in the place of lost terms; the kernel alone loses them."""
    if choice.emulated or choice.fault is None:
        return left
    kept = left.values.float()
    kept[:, : choice.fault.terms] = 0
    return Operand(kept.to(left.values.dtype), left.inverse_scale)


# ---- models ----


def site_name(module_name: str) -> str:
    """Returns the name that plans use: that of the unwrapped model."""
    name = module_name + "."
    for wrapper in _WRAPPERS:
        while name.startswith(wrapper) or "." + wrapper in name:
            name = name.removeprefix(wrapper).replace("." + wrapper, ".")
    return name.removesuffix(".")


def linear_sites(model: nn.Module) -> dict[str, nn.Linear]:
    """Returns the linear layers of `model` by site, in model order."""
    return {
        site_name(name): module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }


def plan_sites(model: nn.Module) -> dict[str, PlanLinear]:
    """Returns the layers that `adopt` has turned, by site, in model order."""
    sites = linear_sites(model)
    return {site: module for site, module in sites.items() if isinstance(module, PlanLinear)}


def adopt(model: nn.Module, plan: PrecisionPlan, skip: Iterable[str] = ()) -> list[str]:
    """Turns the linear layers of `model` into PlanLinear under `plan`; returns their sites in model
    order. Sites in `skip` stay as they are. Call it before DDP, FSDP2 and torch.compile.
    Raises ConfigError where a layer is a subclass of nn.Linear with a forward pass of its own.
    """
    left_out = set(skip)
    for site, module in linear_sites(model).items():
        if site in left_out or isinstance(module, PlanLinear):
            continue
        if type(module) is not nn.Linear:
            raise ConfigError("model", f"{site} is a {type(module).__name__}", "an nn.Linear")
        module.__class__ = PlanLinear
        adopted = cast(PlanLinear, module)
        adopted.site = site
        adopted.choice = SiteChoice()
    set_plan(model, plan)
    return list(plan_sites(model))


def set_plan(model: nn.Module, plan: PrecisionPlan) -> None:
    """Has every site run as `plan` says from the next forward pass on. All or nothing: raises
    Rejected, with nothing changed, where a site cannot run as the plan says.
    """
    modules = plan_sites(model)
    if not modules:
        raise Rejected("the model has no PlanLinear; gnomon.torch.adopt makes them")
    choices = site_choices(modules, plan)
    for site, module in modules.items():
        new = choices[site]
        module.choice = replace(new, emulated=module.choice.emulated, fault=module.choice.fault)


def site_choices(sites: Iterable[str], plan: PrecisionPlan) -> dict[str, SiteChoice]:
    """Returns how each site runs under `plan`. Raises Rejected for what PlanLinear cannot do."""
    names = list(sites)
    try:
        bound = plan.bind(names, layers_of(names))
    except ConfigError as error:
        raise Rejected(str(error)) from None
    for key, value in plan.of_run().items():
        if value not in ("fp32", "full"):
            raise Rejected(f'{key} = "{value}"; PlanLinear sets the precision of GEMMs alone')
    return {
        site: SiteChoice(
            _checked(bound, site, "fprop"),
            _checked(bound, site, "dgrad"),
            _checked(bound, site, "wgrad"),
        )
        for site in names
    }


def _checked(plan: PrecisionPlan, site: str, gemm: str) -> GemmPrecision:
    settings = plan.gemm(site, gemm)
    if not settings.fp8:
        return BF16
    where = f"the {gemm} of {site}"
    if settings.recipe not in RECIPES:
        raise Rejected(f'{where}: recipe "{settings.recipe}"; PlanLinear has {", ".join(RECIPES)}')
    used = {settings.forward_format} | ({settings.gradient_format} if gemm != "fprop" else set())
    for fmt in sorted(used - set(FORMATS)):
        raise Rejected(f'{where}: format "{fmt}"; PlanLinear has {", ".join(FORMATS)}')
    if settings.forward_format == "e5m2" and (
        gemm == "fprop" or settings.gradient_format == "e5m2"
    ):
        raise Rejected(f"{where} would multiply E5M2 by E5M2, which no hardware does")
    if settings.accumulate != "fp32":
        raise Rejected(f'{where}: accumulate = "{settings.accumulate}"; the device sums as it does')
    return settings


def set_step(model: nn.Module, step: int, faults: Iterable[Fault]) -> None:
    """Switches on, at each site, the fault that acts in `step`, and off all others."""
    active = {fault.site: fault for fault in faults if fault.acts_at(step)}
    modules = plan_sites(model)
    for fault in active.values():
        if fault.site not in modules:
            raise ConfigError("fault", fault.site, "a site of the model")
    for site, module in modules.items():
        if module.choice.fault != active.get(site):
            module.choice = replace(module.choice, fault=active.get(site))


@contextmanager
def choices_of(model: nn.Module, choices: dict[str, SiteChoice]) -> Iterator[None]:
    """Has the sites run by `choices` inside the `with`, and as before behind it."""
    modules = plan_sites(model)
    before = {site: module.choice for site, module in modules.items()}
    try:
        for site, choice in choices.items():
            modules[site].choice = choice
        yield
    finally:
        for site, module in modules.items():
            module.choice = before[site]
