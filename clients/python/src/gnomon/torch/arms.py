"""The arms of a replay: what a model runs in while a window is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from gnomon.plan import PrecisionPlan
from gnomon.torch.plan_linear import SiteChoice, choices_of, plan_sites, site_choices

ARMS = ("bf16", "same", "plan", "fakequant", "eager")


@contextmanager
def arm(model: nn.Module, name: str, plan: PrecisionPlan | None = None) -> Iterator[None]:
    """Has the PlanLinear layers of `model` run in an arm inside the `with`, as before behind it.

    bf16: no GEMM in FP8. same: as they are, or under `plan`. plan: under `plan`. fakequant: the
    FP8 values of the plan without the FP8 kernel. eager: as `same`, and nothing that torch.compile
    has compiled is used, which separates a fault of the compiler from one of FP8.
    Raises ValueError for another arm, Rejected for a plan that the layers cannot run.
    """
    if name not in ARMS:
        raise ValueError(f'arm "{name}"; expected {", ".join(ARMS)}')
    if name == "plan" and plan is None:
        raise ValueError("the arm plan needs a plan")
    now = {site: module.choice for site, module in plan_sites(model).items()}
    under = now if plan is None or name == "bf16" else site_choices(now, plan)
    choices: dict[str, SiteChoice] = {}
    for site, choice in under.items():
        kept = replace(choice, emulated=name == "fakequant", fault=now[site].fault)
        choices[site] = SiteChoice() if name == "bf16" else kept
    with ExitStack() as stack:
        stack.enter_context(choices_of(model, choices))
        if name == "eager":
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@torch.no_grad()
def nudge(model: nn.Module, seed: int, scale: float = 0.0) -> None:
    """Moves every weight by a relative `scale` · N(0, 1) (0: 2⁻⁹, the rounding of BF16), as `seed`
    says, so that repeated replays of an arm spread as chance would spread them. A sharded
    parameter takes its part of the noise of the whole: any number of ranks gives the same weights.
    """
    for index, (_, parameter) in enumerate(sorted(model.named_parameters())):
        generator = torch.Generator("cpu").manual_seed((seed * 1_000_003 + index) % 2**63)
        noise = torch.randn(parameter.shape, generator=generator, device="cpu")
        parameter.mul_(1 + (scale or 2.0**-9) * _placed(noise, parameter))


def _placed(noise: Tensor, like: Tensor) -> Tensor:
    """Returns the noise on the device of `like`, and sharded as it is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(like, DTensor):
        return distribute_tensor(noise.to(like.device), like.device_mesh, like.placements)
    return noise.to(like.device, like.dtype)
