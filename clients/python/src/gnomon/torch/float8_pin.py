"""A live pin for torchao's `Float8Linear`: a pinned layer runs as an `nn.Linear`, and back again.

    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("rowwise"))
    pin = Float8Pin(model)
    run = gnomon.init(..., sites=pin.sites, plan=pin.plan, capabilities=pin.capabilities,
                      on_plan=pin.set_plan)

A layer's class is exchanged once, and nothing else: parameters, their names, hooks and what an
optimizer holds stay, so FP8 comes back to the bit. What a pin changes is a value that the forward
pass reads: torch.compile then compiles once for each plan. To exchange classes live is not safe:
what PyTorch 2.11 had compiled for a pinned layer went on running where FP8 had come back.
Float8Linear is not a public API of torchao: the tests run with the versions that `TESTED` names,
and another one is accepted only where the class has the attributes that this needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torchao
from torch import Tensor, nn
from torch.nn import functional
from torchao.float8.float8_linear import Float8Linear

from gnomon.errors import ConfigError, Rejected
from gnomon.model import layers_of
from gnomon.plan import PlanRule, PrecisionPlan
from gnomon.run import Capabilities
from gnomon.torch.plan_linear import linear_sites

log = logging.getLogger("gnomon")

TESTED = ("0.16.0", "0.17.0", "0.18.0")

# A plan's recipes that are each the arithmetic of one of torchao's.
_ALIKE = {
    "tensorwise": ("tensorwise", "current"),
    "rowwise": ("rowwise",),
    "rowwise_with_gw_hp": ("rowwise_with_gw_hp", "rowwise_gw_hp"),
}


class PinnableFloat8Linear(Float8Linear):  # type: ignore[misc,unused-ignore]
    """A Float8Linear that computes as an `nn.Linear` while `pinned`."""

    pinned: bool

    def forward(self, input: Tensor) -> Tensor:
        """Maps [..., in_features] to [..., out_features]."""
        if self.pinned:
            return functional.linear(input, self.weight, self.bias)
        output: Tensor = super().forward(input)
        return output


class Float8Pin:
    """The Float8Linear layers of a model, each in FP8 or pinned to the precision of its input.

    sites: all linear layers, in model order. plan: what the model runs in as torchao made it.
    Raises ConfigError for a model without such layers, one whose layers have different recipes, and
    weights that travel in FP8 (`enable_fsdp_float8_all_gather`): those are no plain tensors.
    """

    # One class for the three GEMMs of a layer.
    capabilities = Capabilities(plan="module", when="live", rollback="restart")

    def __init__(self, model: nn.Module) -> None:
        found = linear_sites(model)
        self.sites = list(found)
        self._layers: dict[str, PinnableFloat8Linear] = {
            site: module for site, module in found.items() if isinstance(module, Float8Linear)
        }
        if not self._layers:
            accepted = "a model that torchao's convert_to_float8_training has converted"
            raise ConfigError("model", "no Float8Linear in it", accepted)
        if torchao.__version__.split("+")[0] not in TESTED:
            log.warning("torchao %s; tested are %s", torchao.__version__, ", ".join(TESTED))
        recipes = {_recipe_of(site, module) for site, module in self._layers.items()}
        if len(recipes) != 1:
            raise ConfigError("model", f"recipes {sorted(recipes)}", "one recipe for all layers")
        self.recipe = recipes.pop()
        for module in self._layers.values():
            module.__class__ = PinnableFloat8Linear
            module.pinned = False
        others = [site for site in found if site not in self._layers]
        self.plan = PrecisionPlan(
            (PlanRule("*", keys={"gemms": "fp8", "recipe": self.recipe}),)
        ).with_bf16_sites(others)

    def set_plan(self, plan: PrecisionPlan) -> None:
        """Has every layer run as `plan` says from the next forward pass on. All or nothing: raises
        Rejected, with nothing changed, for GEMMs of a layer that differ, another recipe, and FP8
        for a layer that torchao has not converted.
        """
        try:
            bound = plan.bind(self.sites, layers_of(self.sites))
        except ConfigError as error:
            raise Rejected(str(error)) from None
        chosen = {site: self._is_fp8(bound, site) for site in self.sites}
        for site, module in self._layers.items():
            module.pinned = not chosen[site]

    @contextmanager
    def arm(self, name: str, plan: PrecisionPlan | None = None) -> Iterator[None]:
        """Has the layers run in the arm "bf16", "same" (under `plan`, if one is given) or "plan"
        inside the `with`, as before behind it; `Shadow(use_arm=...)` takes it.
        Raises ValueError for another arm, Rejected as `set_plan` does.
        """
        if name not in ("bf16", "same", "plan") or (name == "plan" and plan is None):
            raise ValueError(f'arm "{name}"; expected bf16, same, or plan with a plan')
        before = {site: module.pinned for site, module in self._layers.items()}
        try:
            if name == "bf16":
                self.set_plan(PrecisionPlan.bf16())
            elif plan is not None:
                self.set_plan(plan)
            yield
        finally:
            for site, module in self._layers.items():
                module.pinned = before[site]

    def _is_fp8(self, plan: PrecisionPlan, site: str) -> bool:
        gemms = plan.site(site)
        wanted = [it.fp8 for it in gemms]
        if not any(wanted):
            return False
        if site not in self._layers:
            raise Rejected(f"{site} is no Float8Linear: torchao has not converted it")
        names = {it.recipe for it in gemms if it.fp8}
        if not names <= set(_ALIKE[self.recipe]):
            raise Rejected(f"{site}: recipe {sorted(names)}; torchao made it {self.recipe}")
        whole = [True, True, self.recipe != "rowwise_with_gw_hp"]
        if wanted != whole:
            raise Rejected(f"{site}: torchao has one precision for the three GEMMs of a layer")
        return True


def _recipe_of(site: str, module: nn.Linear) -> str:
    """Returns torchao's name of the layer's recipe. Raises ConfigError for an unknown one."""
    layer: Any = module
    missing = [name for name in ("config", "linear_mm_config") if not hasattr(layer, name)]
    if missing:
        accepted = f"a Float8Linear as in torchao {TESTED[-1]}"
        raise ConfigError(
            "model", f"{site} without {missing} (torchao {torchao.__version__})", accepted
        )
    config = layer.config
    if getattr(config, "enable_fsdp_float8_all_gather", False):
        raise ConfigError("enable_fsdp_float8_all_gather", "True", "False")
    granularity = str(config.cast_config_input.scaling_granularity.value)
    if granularity == "tensorwise":
        return "tensorwise"
    in_wgrad = config.cast_config_input_for_grad_weight.scaling_type
    return "rowwise_with_gw_hp" if str(in_wgrad.value) == "disabled" else "rowwise"
