"""The adapter for TorchTitan: a live plan for its Float8Linear layers, and its Trainer's steps.

    trainer = config.build()                       # Float8LinearConverter, metrics.log_freq = 1
    live = LiveGemms(trainer.model_parts)
    run = gnomon.init(..., sites=live.sites, plan=live.plan, on_plan=live.set_plan,
                      checkpoint_format="torchtitan", capabilities=live.capabilities)
    supervise(trainer, run)
    trainer.train()

TorchTitan binds a layer's forward pass when it parallelizes the model, so that an exchange of the
layer's class would have no effect. What is exchanged is the layer's torchao configuration, which
that forward pass reads each time: FP8 can be taken from each of the three GEMMs, and given back.
With `emulate = True` TorchTitan forgets the recipe's name, and its layers are `tensorwise`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torchao.float8.config import CastConfig, Float8LinearConfig, ScalingType
from torchao.float8.float8_linear import Float8Linear

from gnomon.errors import ConfigError, Rejected
from gnomon.model import layers_of
from gnomon.plan import GEMMS, GemmPrecision, PlanRule, PrecisionPlan
from gnomon.run import Capabilities, Run
from gnomon.step import Step
from gnomon.torch.float8_pin import _ALIKE, _recipe_of
from gnomon.torch.plan_linear import linear_sites

log = logging.getLogger("gnomon")

# The operands of a GEMM in Float8LinearConfig.
_OPERANDS = {
    "fprop": ("cast_config_input", "cast_config_weight"),
    "dgrad": ("cast_config_grad_output", "cast_config_weight_for_grad_input"),
    "wgrad": ("cast_config_input_for_grad_weight", "cast_config_grad_output_for_grad_weight"),
}


class LiveGemms:
    """A live plan for each GEMM of torchao's Float8Linear layers, by their configuration.

    model_parts: what the Trainer has. sites: all linear layers of the run; needed with pipeline
    parallelism, where a rank has some of them. plan: what the layers run in as they are.
    Raises ConfigError for a model without such layers, with several recipes, or with weights that
    travel in FP8. Under torch.compile a change compiles once more.
    """

    capabilities = Capabilities(plan="gemm", when="live", rollback="restart")

    def __init__(
        self, model_parts: Sequence[nn.Module], sites: Sequence[str] | None = None
    ) -> None:
        found: dict[str, Any] = {}
        for part in model_parts:
            found |= linear_sites(part)
        self.sites = list(found) if sites is None else list(sites)
        self._layers = {site: it for site, it in found.items() if isinstance(it, Float8Linear)}
        recipes = {_recipe_of(site, module) for site, module in self._layers.items()}
        if len(recipes) != 1:
            accepted = "Float8Linear layers of one recipe, as Float8LinearConverter makes them"
            raise ConfigError("model", f"recipes {sorted(recipes)}", accepted)
        self.recipe = recipes.pop()
        self._made: dict[str, Float8LinearConfig] = {
            site: module.config for site, module in self._layers.items()
        }
        fp8 = PlanRule("*", keys={"gemms": "fp8", "recipe": self.recipe})
        self._others = [site for site in found if site not in self._layers]
        self.plan = PrecisionPlan((fp8,)).with_bf16_sites(self._others)

    def set_plan(self, plan: PrecisionPlan) -> None:
        """Has every GEMM run as `plan` says from the next forward pass on. All or nothing: raises
        Rejected, with nothing changed, for another recipe, and FP8 for a layer without it.
        """
        try:
            bound = plan.bind(self.sites, layers_of(self.sites))
        except ConfigError as error:
            raise Rejected(str(error)) from None
        for key, value in plan.of_run().items():
            if value not in ("fp32", "full"):
                raise Rejected(f'{key} = "{value}"; this adapter sets the precision of GEMMs alone')
        chosen = {}
        for site in self.sites:
            fp8 = [gemm for gemm in GEMMS if self._is_fp8(bound.gemm(site, gemm), site, gemm)]
            if site in self._layers:
                chosen[site] = _only(self._made[site], fp8)
        for site, config in chosen.items():
            self._layers[site].config = config

    def _is_fp8(self, wanted: GemmPrecision, site: str, gemm: str) -> bool:
        if not wanted.fp8:
            return False
        offered = [PrecisionPlan.fp8(name).gemm(site, gemm) for name in _ALIKE[self.recipe]]
        if wanted not in offered:
            raise Rejected(f"the {gemm} of {site}: {wanted}; its layers were made {self.recipe}")
        if site in self._others:
            raise Rejected(f"{site} is no Float8Linear: the converter has left it out")
        return True


def _only(config: Float8LinearConfig, fp8: Sequence[str]) -> Float8LinearConfig:
    """The configuration with FP8 in these GEMMs alone, and as it was made where that is all."""
    changes: dict[str, CastConfig] = {}
    for gemm, operands in _OPERANDS.items():
        if gemm not in fp8:
            for name in operands:
                dtype = getattr(config, name).target_dtype
                changes[name] = CastConfig(ScalingType.DISABLED, target_dtype=dtype)
    return dataclasses.replace(config, **changes) if changes else config


def supervise(trainer: Any, run: Run, hash_batches: bool = True) -> None:
    """Has a `torchtitan.trainer.Trainer` report its steps and checkpoints to `run`.

    Call it once, before `trainer.train()`; `run.finish()` is the caller's. The Trainer computes
    losses at the steps that it logs, so `metrics.log_freq` has to be 1, else ConfigError. It raises
    RuntimeError at a loss that is not finite, before it logs: that step is not reported. What its
    checkpointer writes asynchronously, or for the last step as a model alone, is not reported.
    A rollback ends the process with RestartRequired; `checkpoint.load_step` has to be
    `run.resume_from.step` in the next one.
    """
    if trainer.config.metrics.log_freq != 1:
        raise ConfigError("metrics.log_freq", str(trainer.config.metrics.log_freq), "1")
    train_step, log_metrics = trainer.train_step, trainer.metrics_processor.log
    save = trainer.checkpointer.save
    steps: list[Step] = []

    def supervised_step(data_iterator: Iterator[Any]) -> None:
        if not steps and (trainer.step > 1 or run.resume_from is not None):
            run.start_from(trainer.step - 1)
        batches: list[Tensor] = []
        with run.step() as step:
            steps[:] = [step]
            train_step(_watched(data_iterator, batches) if hash_batches else data_iterator)
            if batches:
                step.batch(batches)

    def log_and_report(
        step: int, global_avg_loss: float, global_max_loss: float, grad_norm: float, **more: Any
    ) -> None:
        steps[0].log(loss=global_avg_loss, grad_norm=grad_norm)
        log_metrics(step, global_avg_loss, global_max_loss, grad_norm, **more)

    def save_and_report(curr_step: int, last_step: bool = False) -> bool:
        saved = bool(save(curr_step, last_step=last_step))
        checkpointer = trainer.checkpointer
        whole = not (last_step and checkpointer.last_save_model_only) if saved else False
        if whole and checkpointer.save_future is None:
            run.checkpoint(checkpointer._create_checkpoint_id(curr_step), step=curr_step)
        return saved

    trainer.train_step = supervised_step
    trainer.metrics_processor.log = log_and_report
    trainer.checkpointer.save = save_and_report


def _watched(data_iterator: Iterator[Any], batches: list[Tensor]) -> Iterator[Any]:
    """The same items; their tensors, before they go to the device, are in `batches` too."""
    for inputs, labels in data_iterator:
        batches += [each for each in inputs.values() if isinstance(each, Tensor)]
        batches.append(labels)
        yield inputs, labels
