"""The adapter for Megatron: plans in its precision file, and live plans for modules or layers.

    write_precision_config("precision.yaml", plan, sites)   # for --te-precision-config-file

    live = LiveModules(model)    # or LiveLayers(sites, recipe) and its install(), where no module
    run = gnomon.init(..., sites=live.sites, plan=plan, on_plan=live.set_plan,   # has finish_init
                      capabilities=live.capabilities)

A site is a module's path in the GPTModel, with the layer's number in the whole model: like
`decoder.layers.0.self_attention.linear_qkv`. One precision holds for the three GEMMs of a module.
Megatron's file takes the first matcher that fits, and a plan the last rule: the conversion resolves
the plan for every module, so it needs their names.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import os
import pathlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gnomon.errors import ConfigError, Rejected
from gnomon.model import layers_of
from gnomon.plan import GEMMS, PlanRule, PrecisionPlan
from gnomon.run import Capabilities
from gnomon.site_glob import ALTERNATIVES_MAX

_TYPE_KEY = "transformer_engine_config_type"
_TYPE = "TEQuantizationParams"
# Recipes of plans, and what Megatron's files call them. `delayed` is not for single modules there.
_FP8_RECIPES = {
    "current": "tensorwise",
    "tensorwise": "tensorwise",
    "block": "blockwise",
    "mx": "mxfp8",
    "mxfp8": "mxfp8",
}
_PLAN_RECIPES = {"tensorwise": "tensorwise", "blockwise": "block", "mxfp8": "mxfp8"}
_FORMATS = {"e4m3": "e4m3", "e5m2": "hybrid"}  # of a gradient

Keys = Mapping[str, Any]


def precision_config(plan: PrecisionPlan, sites: Sequence[str]) -> dict[str, Any]:
    """What `--te-precision-config-file` reads, for a model in one pipeline stage: with several,
    Megatron numbers the layers of each stage from 0.

    The plan is the master: a module runs as it says inside an autocast and outside of one. Raises
    ConfigError for what Megatron cannot do for one module.
    """
    bound = plan.bind(sites, layers_of(sites))
    recipes = {site: _recipe_of(bound, site) for site in sites}
    names = {_name_of(recipe): recipe for recipe in recipes.values()}
    counts = Counter(_name_of(recipe) for recipe in recipes.values())
    most = counts.most_common(1)[0][0]
    matchers = {
        site: _matcher(glob.escape(site), _name_of(recipe))
        for site, recipe in recipes.items()
        if _name_of(recipe) != most
    }
    return {
        "configs": {
            name: {_TYPE_KEY: _TYPE, "training_recipe": recipe} for name, recipe in names.items()
        },
        "matchers": {**matchers, "all others": _matcher("*", most)},
    }


def write_precision_config(
    path: str | os.PathLike[str], plan: PrecisionPlan, sites: Sequence[str]
) -> None:
    """Writes `precision_config` as JSON, which YAML contains. Raises ConfigError, OSError."""
    text = json.dumps(precision_config(plan, sites), indent=2)
    pathlib.Path(path).write_text(text + "\n", encoding="utf-8")


def plan_of(config: Mapping[str, Any], sites: Sequence[str], autocast: Keys) -> PrecisionPlan:
    """The plan that a precision file (as `yaml.safe_load` gives it) makes of these sites.

    autocast: keys of a rule for a module that the file leaves to Megatron's options, like
    {"gemms": "fp8", "recipe": "delayed"} or {"gemms": "bf16"}. What the file says about evaluation
    has no place in a plan. Raises ConfigError.
    """
    return _plan_from({site: _keys_of(config, site, autocast) for site in sites})


class LiveModules:
    """A live plan for the modules of Megatron that read a precision file, by `finish_init`.

    model: what `get_model` returns, a module or a list of them. sites: all of the run's; needed
    with several pipeline stages, where `own_sites` has those of this rank.
    Each forward pass asks the module, so a plan takes effect at the next one. CUDA graphs would
    replay the old precision.
    """

    capabilities = Capabilities(plan="module", when="live", rollback="restart")

    def __init__(self, model: Any, sites: Sequence[str] | None = None) -> None:
        self._modules = modules_of(model)
        self.own_sites = list(self._modules)
        self.sites = self.own_sites if sites is None else list(sites)
        if not self.sites or not set(self.own_sites) <= set(self.sites):
            accepted = "modules with finish_init, all of them in `sites` where that is given"
            raise ConfigError("model", f"{len(self.own_sites)} modules", accepted)

    def set_plan(self, plan: PrecisionPlan) -> None:
        """Has every module run as `plan` says from the next forward pass on. All or nothing: raises
        Rejected, with nothing changed.
        """
        from megatron.core.quantization.quant_config import MatchContext, QuantizationConfig

        recipes = _recipes_or_rejected(plan, self.sites)
        for site, module in self._modules.items():
            config = {_TYPE_KEY: _TYPE, "training_recipe": recipes[site]}
            module.finish_init(QuantizationConfig(config, MatchContext(site, None), "gnomon"))


class LiveLayers:
    """A live plan for whole layers: `is_first_last_bf16_layer`, which Megatron asks for each layer
    at each forward pass, answers from the plan. The recipe stays that of Megatron's options.

    recipe: its name in plans. Raises ConfigError for `delayed`, which Megatron enters once for all
    layers.
    """

    capabilities = Capabilities(plan="layer", when="live", rollback="restart")

    def __init__(self, sites: Sequence[str], recipe: str) -> None:
        if recipe == "delayed":
            raise ConfigError("recipe", '"delayed"', "a recipe that Megatron enters layer by layer")
        self.sites = list(sites)
        self._fp8 = PrecisionPlan.fp8(recipe)
        self._layers = {site: _layer_of(site) for site in self.sites}
        self._bf16: frozenset[int] = frozenset()

    def install(self) -> None:
        """Puts the plan in the place of `--first-last-layers-bf16`. Call it before training."""
        from megatron.core import fp8_utils

        fp8_utils.is_first_last_bf16_layer = self.is_bf16_layer

    def is_bf16_layer(self, config: Any, layer_no: int) -> bool:
        """Megatron's signature; `layer_no` counts from 0 in the whole model, and is negative for a
        context that is not of one layer.
        """
        return layer_no in self._bf16

    def set_plan(self, plan: PrecisionPlan) -> None:
        """Has every layer run as `plan` says from the next forward pass on. Raises Rejected, with
        nothing changed, where parts of a layer differ.
        """
        kinds: dict[int, set[bool]] = {}
        bound = _bound_or_rejected(plan, self.sites)
        for site, layer in self._layers.items():
            for gemm in GEMMS:
                wanted, offered = bound.gemm(site, gemm), self._fp8.gemm(site, gemm)
                if wanted.fp8 and wanted != offered:
                    raise Rejected(f"the {gemm} of {site}: {wanted}; Megatron's options: {offered}")
                kinds.setdefault(layer, set()).add(wanted.fp8)
        for layer, kind in kinds.items():
            if len(kind) > 1:
                raise Rejected(f"layer {layer}: FP8 and BF16 in one layer, which LiveLayers cannot")
        self._bf16 = frozenset(layer for layer, kind in kinds.items() if kind == {False})


def modules_of(model: Any) -> dict[str, Any]:
    """The modules with `finish_init` by site. A layer's index in its list becomes its number in the
    whole model: Megatron's `layer_number`, less 1.
    """
    found = {}
    for part in model if isinstance(model, list | tuple) else [model]:
        numbers: dict[str, int] = {}
        for path, module in part.named_modules():
            number = getattr(module, "layer_number", None)
            if path.rpartition(".")[2].isdigit() and isinstance(number, int):
                numbers[path] = number - 1
            if hasattr(module, "finish_init"):
                found[_global(path, numbers)] = module
    return found


def _global(path: str, numbers: Mapping[str, int]) -> str:
    for local, number in numbers.items():
        if path.startswith(local + "."):
            path = f"{local.rpartition('.')[0]}.{number}{path[len(local) :]}"
            break
    while path.startswith("module."):  # of DDP, and of Megatron's own wrapper for BF16
        path = path.removeprefix("module.")
    return path


def _layer_of(site: str) -> int:
    numbers = re.findall(r"(?<=layers\.)\d+", site)
    if not numbers:
        raise ConfigError("sites", repr(site), "modules of layers, like decoder.layers.0.mlp.*")
    return int(numbers[0])


def _bound_or_rejected(plan: PrecisionPlan, sites: Sequence[str]) -> PrecisionPlan:
    for key, value in plan.of_run().items():
        if value not in ("fp32", "full"):
            raise Rejected(f'{key} = "{value}"; this adapter sets the precision of GEMMs alone')
    try:
        return plan.bind(sites, layers_of(sites))
    except ConfigError as error:
        raise Rejected(str(error)) from None


def _recipes_or_rejected(plan: PrecisionPlan, sites: Sequence[str]) -> dict[str, dict[str, Any]]:
    bound = _bound_or_rejected(plan, sites)
    try:
        return {site: _recipe_of(bound, site) for site in sites}
    except ConfigError as error:
        raise Rejected(str(error)) from None


def _recipe_of(plan: PrecisionPlan, site: str) -> dict[str, Any]:
    """The fields of Megatron's TEQuantizationRecipe; without a recipe it is BF16."""
    gemms = plan.site(site)
    flags = {"override_quantized_autocast": True, "override_nonquantized_autocast": True}
    if not any(it.fp8 for it in gemms):
        return flags
    fprop = gemms[0]
    if any(it != fprop for it in gemms):
        raise ConfigError("plan", f"GEMMs of {site} that differ", "one precision for a module")
    if fprop.recipe == "nvfp4":
        return {"fp4_quantization_recipe": "nvfp4", **flags}
    name = _FP8_RECIPES.get(fprop.recipe)
    usual = PrecisionPlan((PlanRule("*", keys=_plan_keys(fprop.recipe, fprop.gradient_format)),))
    if name is None or fprop != usual.gemm(site, "fprop"):
        accepted = f"one of {', '.join(_FP8_RECIPES)}, nvfp4, with gradient_format alone changed"
        raise ConfigError("plan", f"{site}: {fprop}", accepted)
    return {"fp8_quantization_recipe": name, "fp8_format": _FORMATS[fprop.gradient_format], **flags}


def _plan_keys(recipe: str, gradient_format: str) -> dict[str, Any]:
    return {"gemms": "fp8", "recipe": recipe, "gradient_format": gradient_format}


def _name_of(recipe: Mapping[str, Any]) -> str:
    parts = [recipe[key] for key in recipe if key.endswith(("recipe", "format"))]
    return "_".join(parts) or "bf16"


def _matcher(pattern: str, config: str) -> dict[str, Any]:
    return {"type": "glob", "pattern": pattern, "config": config, "enabled": True}


def _keys_of(config: Mapping[str, Any], site: str, autocast: Keys) -> Keys:
    for name, matcher in (config.get("matchers") or {}).items():
        if not matcher.get("enabled", False):
            continue
        if matcher.get("type") != "glob":
            raise ConfigError(f"matchers.{name}.type", repr(matcher.get("type")), '"glob"')
        if fnmatch.fnmatch(site, matcher["pattern"]):
            return _keys_of_config(
                config["configs"][matcher["config"]], matcher["config"], autocast
            )
    return autocast


def _keys_of_config(config: Mapping[str, Any], name: str, autocast: Keys) -> Keys:
    if config.get(_TYPE_KEY) != _TYPE:
        raise ConfigError(f"configs.{name}.{_TYPE_KEY}", repr(config.get(_TYPE_KEY)), repr(_TYPE))
    recipe = config["training_recipe"]
    inside = autocast.get("gemms") == "fp8"
    flag, default = ("override_quantized_autocast", True) if inside else (
        "override_nonquantized_autocast", False)  # fmt: skip
    if not recipe.get(flag, default):
        return autocast
    if recipe.get("fp4_quantization_recipe") == "nvfp4":
        return {"gemms": "fp8", "recipe": "nvfp4"}
    fp8 = recipe.get("fp8_quantization_recipe")
    if fp8 is None and recipe.get("fp4_quantization_recipe") is None:
        return {"gemms": "bf16"}
    if fp8 not in _PLAN_RECIPES:
        accepted = "one of " + ", ".join(_PLAN_RECIPES)
        raise ConfigError(f"configs.{name}.training_recipe", repr(recipe), accepted)
    gradient = "e5m2" if recipe.get("fp8_format", "e4m3") == "hybrid" else "e4m3"
    return _plan_keys(_PLAN_RECIPES[fp8], gradient)


def _plan_from(keys: Mapping[str, Keys]) -> PrecisionPlan:
    """The most frequent keys for all sites, then a rule for each of the others."""
    groups: dict[str, list[str]] = {}
    for site, each in keys.items():
        groups.setdefault(json.dumps(each, sort_keys=True), []).append(site)
    ordered = sorted(groups.values(), key=len, reverse=True)
    rules = [PlanRule("*", keys=dict(keys[sites[0]])) for sites in ordered[:1]]
    for sites in ordered[1:]:
        rules += [PlanRule(match, keys=dict(keys[sites[0]])) for match in _globs(sites)]
    return PrecisionPlan(tuple(rules))


def _globs(sites: Sequence[str]) -> Iterable[str]:
    for first in range(0, len(sites), ALTERNATIVES_MAX):
        part = sites[first : first + ALTERNATIVES_MAX]
        yield part[0] if len(part) == 1 else "{" + ",".join(part) + "}"
