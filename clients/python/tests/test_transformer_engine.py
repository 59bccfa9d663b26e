"""LivePlan: the real nvdlfw-inspect asks it, for TransformerEngine's own decisions on a GEMM."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("nvdlfw_inspect", reason="needs pip install nvdlfw-inspect")

import nvdlfw_inspect.api as debug_api
import te_debug
from te_debug import Linear

from gnomon import ConfigError, GnomonError, PrecisionPlan, Rejected
from gnomon.transformer_engine import CONFIG, LivePlan, debugged_layers

FC1, FC2 = "model.layers.0.fc1", "model.layers.0.fc2"
FP8 = PrecisionPlan.fp8("delayed")
# The GEMMs of an operand, in the order of TransformerEngine's two copies of it.
GEMMS = {
    "activation": ("fprop", "wgrad"),
    "weight": ("fprop", "dgrad"),
    "gradient": ("dgrad", "wgrad"),
}


class Model:
    def __init__(self) -> None:
        self.layers = [Linear(FC1), Linear(FC2)]

    def modules(self) -> list[Any]:
        return list(self.layers)

    def fp8(self, layer: int) -> set[str]:
        """The GEMMs that one forward pass of a layer decides to run in FP8."""
        asked: dict[str, set[str]] = {}
        for operand, how in self.layers[layer].tensors().items():
            for gemm, each in zip(GEMMS[operand], how, strict=True):
                asked.setdefault(gemm, set()).add(each)
        assert all(len(each) == 1 for each in asked.values()), "operands of a GEMM that differ"
        return {gemm for gemm, how in asked.items() if how == {"Quantize"}}


@pytest.fixture
def live(tmp_path: pathlib.Path) -> Iterator[LivePlan]:
    """A LivePlan that the debug tool asks, with the layers' names known."""
    with te_debug.importable(tmp_path) as features:
        it = LivePlan(autocast=FP8)
        it.register()
        debug_api.initialize(
            config_file=CONFIG, feature_dirs=[str(features)], log_dir=str(tmp_path)
        )
        try:
            yield it
        finally:
            debug_api.end_debug()


def plan(*rules: str) -> PrecisionPlan:
    return PrecisionPlan.parse(FP8.to_toml() + "".join(f"\n[[rule]]\n{each}\n" for each in rules))


def test_the_plan_is_asked_for_each_gemm_of_each_layer(live: LivePlan) -> None:
    model = Model()
    live.follow(model)
    assert live.sites == [FC1, FC2]
    assert model.fp8(0) == model.fp8(1) == {"fprop", "dgrad", "wgrad"}
    live.set_plan(plan(f'match = "{FC1}"\nwgrad = "bf16"', f'match = "{FC2}"\ngemms = "bf16"'))
    debug_api.step()
    assert model.fp8(0) == {"fprop", "dgrad"}
    assert model.fp8(1) == set()


def test_a_layer_is_asked_again_after_any_number_of_steps_in_fp8(live: LivePlan) -> None:
    model = Model()
    live.follow(model)
    for _ in range(5):
        assert model.fp8(0) == {"fprop", "dgrad", "wgrad"}
        debug_api.step()
    live.set_plan(plan(f'match = "{FC1}"\ngemms = "bf16"'))
    assert model.fp8(0) == set()
    debug_api.step()
    live.set_plan(FP8)
    assert model.fp8(0) == {"fprop", "dgrad", "wgrad"}


def test_weights_kept_in_another_precision_are_dropped(live: LivePlan) -> None:
    model = Model()
    live.follow(model)
    for layer in model.layers:
        layer._fp8_workspaces["weight"] = object()
    live.set_plan(plan(f'match = "{FC1}"\nfprop = "bf16"'))
    assert [list(layer._fp8_workspaces) for layer in model.layers] == [[], ["weight"]]


def test_fp8_of_another_kind_than_the_autocasts_is_rejected(live: LivePlan) -> None:
    model = Model()
    live.follow(model)
    live.set_plan(plan(f'match = "{FC1}"\nfprop = "bf16"'))
    for text in (
        f'match = "{FC2}"\nrecipe = "mxfp8"',
        f'match = "{FC2}"\ngradient_format = "e4m3"',
        'match = "*"\nmoments = "bf16"',
    ):
        with pytest.raises(Rejected):
            live.set_plan(plan(text))
    assert model.fp8(0) == {"dgrad", "wgrad"}  # as before
    with pytest.raises(Rejected, match="matches at least one"):
        live.set_plan(plan('match = "model.layers.7.*"\ngemms = "bf16"'))


def test_of_two_features_the_one_that_says_fp8_is_followed(tmp_path: pathlib.Path) -> None:
    section = CONFIG["gnomon"]
    beside = {"DisableQuantizationGEMM": {"enabled": True, "gemms": ["wgrad"]}}
    both = {**section, "transformer_engine": {**section["transformer_engine"], **beside}}
    with te_debug.importable(tmp_path) as features:
        it = LivePlan(autocast=FP8)
        it.register()
        debug_api.initialize(
            config_file={"both": both}, feature_dirs=[str(features)], log_dir=str(tmp_path)
        )
        model = Model()
        it.follow(model)
        assert model.fp8(0) == {"fprop", "dgrad", "wgrad"}
        debug_api.end_debug()


def test_a_layer_that_the_run_does_not_know_is_an_error(live: LivePlan) -> None:
    live.follow(Model())
    with pytest.raises(GnomonError, match="not among the 2 sites"):
        Linear("model.lm_head").tensors()


def test_layers_have_the_names_that_the_debug_tool_uses() -> None:
    def layer(kind: str, **attributes: Any) -> Any:
        module = "transformer_engine.pytorch.module." + kind.lower()
        base = type(kind, (), {"__module__": module})
        return type("Own", (base,), {"__module__": "user"})()  # as Megatron derives its own

    made = [
        layer("LayerNormLinear"),
        layer("LayerNormMLP"),
        layer("GroupedLinear"),
        layer("RMSNorm"),
    ]
    for number, module in enumerate(made):
        module.name, module.num_gemms = f"Layer_{number + 1}", 2
    model = type("Model", (), {"modules": lambda self: made})()
    names = ["Layer_1", "Layer_2.fc1", "Layer_2.fc2", "Layer_3.gemm_0", "Layer_3.gemm_1"]
    assert list(debugged_layers(model)) == names
    empty = type("Model", (), {"modules": lambda self: []})()
    with pytest.raises(ConfigError, match=r"transformer_engine\.pytorch"):
        LivePlan(FP8).follow(empty)
