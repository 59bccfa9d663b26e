"""The adapter for `transformers.Trainer`: a callback that reports its steps and obeys directives.

    adopt(model, PLAN)
    trainer = Trainer(model=model, args=args, ...)
    run = gnomon.init(project="x", name="y", sites=list(plan_sites(model)), plan=PLAN,
                      checkpoint_format="transformers", checkpoint_every=args.save_steps,
                      capabilities=Capabilities(plan="gemm", when="live", rollback="restart"),
                      on_plan=lambda plan: set_plan(model, plan))
    trainer.add_callback(GnomonCallback(run))
    trainer.train(resume_from_checkpoint=run.resume_from.checkpoint if run.resume_from else None)

A plan takes effect at the next step. A rollback ends the process with status 75 (RestartRequired);
started again, the lines above go on from the checkpoint that the controller has named.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import transformers
from torch import Tensor, nn

from gnomon.run import Run
from gnomon.step import Step
from gnomon.torch.weights_hash import weights_hash

log = logging.getLogger("gnomon")


class GnomonCallback(transformers.TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Reports each optimizer step of a Trainer to `run`, which it finishes at the end.

    It sets `logging_steps = 1` and `logging_nan_inf_filter = False`: with their defaults the
    Trainer has a mean over 500 steps only, and puts older losses in the place of NaN. Entries that
    the arguments did not ask for are taken out of `log_history` again.
    hash_batches: a hash of the token ids goes with each step. hash_weights: one of the weights goes
    with each step that is saved.
    """

    def __init__(self, run: Run, *, hash_batches: bool = True, hash_weights: bool = True) -> None:
        self._run = run
        self._hash_batches = hash_batches
        self._hash_weights = hash_weights
        self._step: Step | None = None
        self._batch: list[Any] = []
        self._hook: Any = None
        self._logging_steps = 0.0  # as the arguments had it
        self._logs = True  # whether they wanted any

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sets the arguments that would hide losses."""
        self._prepare(args)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begins the attempt from the step that the Trainer has loaded."""
        self._prepare(args)
        state.logging_steps = 1
        if state.global_step > 0 or self._run.resume_from is not None:
            self._run.start_from(state.global_step)
        if self._hash_batches:
            model: nn.Module = kwargs["model"]
            self._hook = model.register_forward_pre_hook(self._keep_tokens, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A new plan takes effect here. Raises what `run.step` raises."""
        self._batch = []
        self._step = self._run.step()
        self._step.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Behind the optimizer's step, before the Trainer logs and saves."""
        step = self._step
        if step is None:
            return
        control.should_log = True
        if self._batch:
            step.batch(self._batch)
        if control.should_save and self._hash_weights:
            step.log(weights_hash=weights_hash(kwargs["model"]))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The Trainer has the step's loss here, and ends the step."""
        step = self._step
        if step is None or logs is None or "loss" not in logs:
            return
        self._step = None
        step.log(
            loss=float(logs["loss"]),
            grad_norm=logs.get("grad_norm"),
            learning_rate=logs.get("learning_rate"),
        )
        step.__exit__(None, None, None)
        if not self._asked_for(state.global_step) and state.log_history:
            state.log_history.pop()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint's files are complete here."""
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if not os.path.isdir(path):
            return log.warning("%s is not there, so it is not reported", path)
        digest = weights_hash(kwargs["model"]) if self._hash_weights else None
        self._run.checkpoint(path, step=state.global_step, weights_hash=digest)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports the end: stopped, where the Trainer has not come to its last step."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._run.finish("completed" if state.global_step >= state.max_steps else "stopped")

    def _prepare(self, args: Any) -> None:
        changed = args.logging_steps != 1 or str(args.logging_strategy) != "steps"
        if not self._logging_steps:
            self._logs = getattr(args.logging_strategy, "value", "steps") == "steps"
            self._logging_steps = args.logging_steps
        if changed or args.logging_nan_inf_filter:
            log.info("logging_steps = 1 and logging_nan_inf_filter = False: each loss is reported")
        args.logging_strategy = type(args.logging_strategy)("steps")
        args.logging_steps = 1
        args.logging_nan_inf_filter = False

    def _asked_for(self, step: int) -> bool:
        return self._logs and self._logging_steps >= 1 and step % self._logging_steps == 0

    def _keep_tokens(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self._step is None or not model.training:
            return
        tokens = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(tokens, Tensor):
            self._batch.append(tokens)
