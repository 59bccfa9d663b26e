"""The adapter for TransformerEngine: its debug tool asks the live plan for each GEMM of a layer.

    live = LivePlan(autocast=PrecisionPlan.fp8("delayed"))
    live.register()
    debug_api.initialize(config_file=CONFIG, feature_dirs=[".../transformer_engine/debug/features"])
    model = ...                                   # TransformerEngine's modules, after initialize
    live.follow(model)
    run = gnomon.init(..., sites=live.sites, plan=live.autocast, on_plan=live.set_plan,
                      capabilities=live.capabilities)
    for batch in loader:
        with run.step(batch=batch) as s, te.autocast(enabled=True, recipe=DelayedScaling()):
            ...
        debug_api.step()                          # once for each optimizer step

The debug tool is nvdlfw-inspect, an own distribution. A plan can take FP8 away from a GEMM and give
it back; it cannot change the recipe, which is the autocast's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon.errors import ConfigError, GnomonError, Rejected
from gnomon.model import layers_of
from gnomon.plan import GEMMS, PrecisionPlan
from gnomon.run import Capabilities

FEATURE = "GnomonPlan"

# For `debug_api.initialize`: every layer asks the plan. The debug tool allows a layer in one
# section alone, so who has sections of his own adds FEATURE to each of them.
CONFIG: dict[str, Any] = {
    "gnomon": {
        "enabled": True,
        "layers": {"layer_name_regex_pattern": ".*"},
        "transformer_engine": {FEATURE: {"enabled": True}},
    }
}

_ONE_GEMM_LAYERS = ("Linear", "LayerNormLinear")


class LivePlan:
    """The debug tool's settings for each GEMM. A site's name is the debug tool's layer name.

    autocast: what the recipe of the autocast does, as a plan; it is in force until `set_plan`.
    No other feature that answers `fp8_gemm_enabled` may be enabled for the same layer: of several
    answers, TransformerEngine takes FP8 where one says so.
    """

    capabilities = Capabilities(plan="gemm", when="live", rollback="restart")

    def __init__(self, autocast: PrecisionPlan) -> None:
        self.autocast = autocast
        self.sites: list[str] = []
        self._layers: dict[str, Any] = {}
        self._fp8: dict[tuple[str, str], bool] = {}

    def register(self) -> None:
        """Registers the feature with the debug tool. Call it before `debug_api.initialize`, and
        again before each later one: `debug_api.end_debug` forgets all features.
        """
        from nvdlfw_inspect.registry import Registry

        feature = type(FEATURE, (_Feature,), {"live": self})
        Registry.register_feature(namespace="transformer_engine")(feature)

    def follow(self, model: Any) -> None:
        """Takes the layers of `model` (torch.nn.Module) as sites, and has them run as `autocast`
        says. Raises ConfigError for a model without such layers.
        """
        self._layers = debugged_layers(model)
        self.sites = list(self._layers)
        if not self.sites:
            raise ConfigError("model", type(model).__name__, "layers of transformer_engine.pytorch")
        self.set_plan(self.autocast)

    def set_plan(self, plan: PrecisionPlan) -> None:
        """Has every GEMM run as `plan` says from the next forward pass on. All or nothing: raises
        Rejected, with nothing changed, for FP8 of another kind than the autocast's.
        """
        layers = layers_of(self.sites)
        try:
            bound, autocast = (each.bind(self.sites, layers) for each in (plan, self.autocast))
        except ConfigError as error:
            raise Rejected(str(error)) from None
        for key, value in plan.of_run().items():
            if value not in ("fp32", "full"):
                raise Rejected(f'{key} = "{value}"; this adapter sets the precision of GEMMs alone')
        answers = {}
        for site in self.sites:
            for gemm in GEMMS:
                wanted, offered = bound.gemm(site, gemm), autocast.gemm(site, gemm)
                if wanted.fp8 and wanted != offered:
                    raise Rejected(f"the {gemm} of {site}: {wanted}; the autocast has {offered}")
                answers[site, gemm] = wanted.fp8
        before, self._fp8 = self._fp8, answers
        for (site, gemm), fp8 in answers.items():
            if before.get((site, gemm), fp8) != fp8:
                # Weights kept for further microbatches would be updated in their old precision.
                getattr(self._layers[site], "_fp8_workspaces", {}).clear()

    def fp8_gemm_enabled(self, layer_name: str, gemm: str) -> bool:
        """Whether the plan in force has this GEMM in FP8. Raises GnomonError for an unknown one."""
        answer = self._fp8.get((layer_name, gemm))
        if answer is None:
            raise GnomonError(
                f"the debug tool asks for the {gemm} of {layer_name!r}, which is not among the "
                f"{len(self.sites)} sites of the run: call LivePlan.follow when layers have names"
            )
        return answer


class _Feature:
    """What the debug tool calls; the class that `register` derives has the LivePlan."""

    live: LivePlan

    def parse_config_and_api(
        self, config: Mapping[str, Any], **arguments: Any
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the feature is asked: for every GEMM of a layer whose section names it."""
        return True, {}

    def fp8_gemm_enabled(
        self, config: Any, layer_name: str, gemm: str, iteration: int
    ) -> tuple[bool, int]:
        """The answer, and the iteration at which to ask again: the next. Without it a layer that
        is in FP8 as a whole would not be asked any more, and a later pin would have no effect.
        """
        return self.live.fp8_gemm_enabled(layer_name, gemm), iteration + 1

    # The debug tool finds its API by this mark; its decorator does nothing else.
    fp8_gemm_enabled.is_api = True  # type: ignore[attr-defined]


def debugged_layers(model: Any) -> dict[str, Any]:
    """The layers of `model` (torch.nn.Module) with GEMMs by the names that the debug tool has.

    They are what the modules were given as `name`, else `Layer_N` in the order of construction, or
    what `debug_api.infer_and_assign_layer_names(model)` has assigned. The two linear layers of a
    LayerNormMLP end in `.fc1` and `.fc2`, those of a GroupedLinear in `.gemm_0` and so on.
    """
    layers = {}
    for module in model.modules():
        kinds = {
            each.__name__
            for each in type(module).__mro__
            if each.__module__.startswith("transformer_engine.pytorch.")
        }
        if kinds.intersection(_ONE_GEMM_LAYERS):
            layers[module.name] = module
        elif "LayerNormMLP" in kinds:
            layers |= {f"{module.name}.{part}": module for part in ("fc1", "fc2")}
        elif "GroupedLinear" in kinds:
            layers |= {f"{module.name}.gemm_{i}": module for i in range(module.num_gemms)}
    return layers
