"""Megatron's own code reads what the adapter writes: first match wins there, last here."""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
import random
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("megatron.core", reason="needs pip install megatron-core")

import torch
from megatron.core import fp8_utils
from megatron.core.extensions import transformer_engine as extension
from megatron.core.quantization.quant_config import MatchContext, RecipeConfig
from megatron.core.quantization.utils import get_quant_config_or_none
from megatron.core.transformer import transformer_block

from gnomon import ConfigError, PrecisionPlan, Rejected
from gnomon.megatron import (
    LiveLayers,
    LiveModules,
    modules_of,
    plan_of,
    precision_config,
    write_precision_config,
)

LAYERS = 4
ATTENTION = ("self_attention.linear_qkv", "self_attention.linear_proj")
MLP = ("mlp.linear_fc1", "mlp.linear_fc2")
SITES = [f"decoder.layers.{i}.{part}" for i in range(LAYERS) for part in ATTENTION + MLP]
BF16_OR_MX = {
    name: {"transformer_engine_config_type": "TEQuantizationParams", "training_recipe": recipe}
    for name, recipe in (("high", {}), ("mx", {"fp8_quantization_recipe": "mxfp8"}))
}
FP8: dict[str, Any] = {"gemms": "fp8", "recipe": "tensorwise", "gradient_format": "e5m2"}
PLAN = """
[[rule]]
match = "*"
gemms = "fp8"
recipe = "current"
[[rule]]
match = "decoder.layers.{0,last}.*"
gemms = "bf16"
[[rule]]
match = "*.linear_fc2"
gemms = "fp8"
recipe = "mxfp8"
[[rule]]
match = "decoder.layers.2.mlp.linear_fc2"
gemms = "bf16"
"""


def as_megatron_reads(path: pathlib.Path, site: str) -> Any:
    """The recipe that Megatron's own code makes of a file for a module."""
    found = get_quant_config_or_none(site, RecipeConfig.from_yaml_file(str(path)))
    return extension.TEQuantizationParams.parse_from_config(found)


def is_quantized(params: Any, inside_autocast: bool) -> bool:
    return bool(extension._get_should_context_be_quantized_params(params, True, inside_autocast))


def test_megatron_reads_each_module_as_the_plan_has_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "precision.yaml"
    plan = PrecisionPlan.parse(PLAN).bind(SITES, LAYERS)
    write_precision_config(path, plan, SITES)
    for site in SITES:
        params = as_megatron_reads(path, site)
        wanted = plan.gemm(site, "fprop")
        for inside_autocast in (False, True):
            assert is_quantized(params, inside_autocast) is wanted.fp8, site
        if wanted.fp8:
            recipe = params.training_recipe
            name = {"current": "tensorwise", "mxfp8": "mxfp8"}[wanted.recipe]
            assert recipe.fp8_quantization_recipe == name
            assert recipe.fp8_format == {"e5m2": "hybrid", "e4m3": "e4m3"}[wanted.gradient_format]
    assert not plan.gemm("decoder.layers.0.mlp.linear_fc1", "fprop").fp8
    assert plan.gemm("decoder.layers.0.mlp.linear_fc2", "fprop").fp8


def test_random_plans_come_back_as_they_went() -> None:
    numbers = random.Random(29)
    globs = ["*", "*.mlp.*", "decoder.layers.{0,last}.*", "*.linear_qkv", "decoder.layers.1.*"]
    keys = [
        {"gemms": "bf16"},
        FP8,
        {"gemms": "fp8", "recipe": "mxfp8"},
        {"gemms": "fp8", "recipe": "block"},
        {"gemms": "fp8", "recipe": "nvfp4"},
    ]
    for _ in range(200):
        rules = []
        for _ in range(numbers.randrange(1, 6)):
            said = {"match": numbers.choice(globs), **numbers.choice(keys)}
            rules += ["[[rule]]", *(f"{key} = {json.dumps(value)}" for key, value in said.items())]
        plan = PrecisionPlan.parse("\n".join(rules)).bind(SITES, LAYERS)
        config = precision_config(plan, SITES)
        back = plan_of(config, SITES, autocast={"gemms": "bf16"}).bind(SITES, LAYERS)
        for site in SITES:
            for gemm in ("fprop", "dgrad", "wgrad"):
                wanted, got = plan.gemm(site, gemm), back.gemm(site, gemm)
                assert wanted.fp8 == got.fp8
                assert not wanted.fp8 or wanted == got
        recipe = RecipeConfig.from_config_dict(config)
        for site in SITES:
            found = recipe.match(MatchContext(site, None))
            params = extension.TEQuantizationParams.parse_from_config(found)
            assert is_quantized(params, True) is plan.gemm(site, "fprop").fp8


def test_a_file_of_others_is_read_by_its_first_match() -> None:
    config = {
        "configs": BF16_OR_MX,
        "matchers": {
            "off": {"type": "glob", "pattern": "*", "config": "mx", "enabled": False},
            "first": {"type": "glob", "pattern": "*.layers.0.*", "config": "high", "enabled": True},
            "fc1": {"type": "glob", "pattern": "*.linear_fc1", "config": "mx", "enabled": True},
        },
    }
    plan = plan_of(config, SITES, autocast=FP8).bind(SITES, LAYERS)
    assert not plan.gemm("decoder.layers.0.mlp.linear_fc1", "fprop").fp8
    assert plan.gemm("decoder.layers.1.mlp.linear_fc1", "fprop").recipe == "mxfp8"
    assert plan.gemm("decoder.layers.1.mlp.linear_fc2", "fprop").recipe == "tensorwise"
    # Outside an autocast neither of the two configs overrides anything.
    outside = plan_of(config, SITES, autocast={"gemms": "bf16"})
    assert not outside.any_fp8(SITES)


def test_what_megatron_cannot_do_for_a_module_is_one_error() -> None:
    plan = PrecisionPlan.fp8("current").to_toml()
    for keys in ('wgrad = "bf16"', 'recipe = "delayed"', 'recipe = "rowwise"', "margin = 1"):
        text = f'{plan}\n[[rule]]\nmatch = "*"\n{keys}\n'
        with pytest.raises(ConfigError, match=r"decoder\.layers\.0"):
            precision_config(PrecisionPlan.parse(text), SITES)


class Module(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """A module as Megatron's TELinear is to `finish_init`; its method is Megatron's."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def linear() -> Any:
    module = Module()
    text = pathlib.Path(inspect.getsourcefile(extension) or "").read_text()
    found = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "finish_init"
    ]
    names = dict(vars(extension))
    exec(ast.unparse(found[0]), names)
    module.finish_init = names["finish_init"].__get__(module)
    return module


def stage(first_layer: int) -> Any:
    layers = []
    for i in range(2):
        layer: Any = Module(mlp=Module(linear_fc1=linear(), linear_fc2=linear()))
        layer.layer_number = first_layer + i + 1
        layers.append(layer)
    return Module(module=Module(decoder=Module(layers=torch.nn.ModuleList(layers))))


def test_a_live_plan_reaches_the_modules_of_each_stage() -> None:
    stages = [stage(0), stage(2)]
    sites = [
        f"decoder.layers.{i}.mlp.{part}" for i in range(4) for part in ("linear_fc1", "linear_fc2")
    ]
    assert list(modules_of(stages)) == sites
    last = LiveModules(stages[1], sites)
    assert last.own_sites == sites[4:]
    with pytest.raises(ConfigError, match="finish_init"):
        LiveModules(stages[1], sites[:4])

    live = LiveModules(stages)
    live.set_plan(PrecisionPlan.fp8("current").with_bf16_sites([sites[-1]]))
    modules = modules_of(stages)

    def quantized(site: str) -> bool:
        return is_quantized(modules[site].te_quant_params, True)

    assert [quantized(site) for site in sites] == [True] * 7 + [False]
    with pytest.raises(Rejected, match="rowwise"):
        live.set_plan(PrecisionPlan.fp8("rowwise"))
    assert [quantized(site) for site in sites] == [True] * 7 + [False]
    live.set_plan(PrecisionPlan.fp8("current"))
    assert all(quantized(site) for site in sites)


def test_whole_layers_follow_the_plan_at_each_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_utils, "is_first_last_bf16_layer", fp8_utils.is_first_last_bf16_layer)
    before = inspect.signature(fp8_utils.is_first_last_bf16_layer)
    live = LiveLayers(SITES, "current")
    live.install()
    after = inspect.signature(fp8_utils.is_first_last_bf16_layer)
    assert list(after.parameters) == list(before.parameters)

    def bf16() -> list[int]:
        return [i for i in range(-1, 4) if fp8_utils.is_first_last_bf16_layer(None, i)]

    plan = PrecisionPlan.fp8("current")
    live.set_plan(plan)
    assert bf16() == []
    live.set_plan(plan.with_bf16_sites(["decoder.layers.{0,2}.*"]))
    assert bf16() == [0, 2]
    with pytest.raises(Rejected, match="layer 1"):
        live.set_plan(plan.with_bf16_sites(["decoder.layers.1.mlp.linear_fc1"]))
    with pytest.raises(Rejected, match="mxfp8"):
        live.set_plan(PrecisionPlan.fp8("mxfp8"))
    assert bf16() == [0, 2]
    with pytest.raises(ConfigError, match="delayed"):
        LiveLayers(SITES, "delayed")


def test_megatron_asks_for_each_layer_at_each_forward() -> None:
    """The places that LiveLayers needs, in Megatron's text: they run where CUDA is."""
    text = inspect.getsource(fp8_utils)
    contexts = [
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "get_fp8_context"
    ]
    assert any("is_first_last_bf16_layer(config, layer_no)" in each for each in contexts)
    forward = inspect.getsource(transformer_block.TransformerBlock.forward)
    assert "self.config, layer.layer_number - 1" in forward
    assert "self.config.fp8_recipe != Fp8Recipe.delayed" in forward
