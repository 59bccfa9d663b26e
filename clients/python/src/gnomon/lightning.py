"""The adapter for Lightning: a callback that reports the steps of a Trainer and obeys directives.

    adopt(module, PLAN)
    run = gnomon.init(project="x", name="y", sites=list(plan_sites(module)), plan=PLAN,
                      checkpoint_format="lightning", checkpoint_every=100,
                      capabilities=Capabilities(plan="gemm", when="live", rollback="restart"),
                      on_plan=lambda plan: set_plan(module, plan))
    trainer = Trainer(callbacks=[GnomonCallback(run), ModelCheckpoint(every_n_train_steps=100)])
    trainer.fit(module, loader, ckpt_path=run.resume_from.checkpoint if run.resume_from else None)

With several ranks start them with torchrun, and call `torch.distributed.init_process_group` before
`gnomon.init`; the Trainer takes the group that is there.

A plan takes effect at the next step. A rollback ends the process with status 75 (RestartRequired);
started again, the lines above go on from the checkpoint that the controller has named, so let
ModelCheckpoint keep what a window may still need (`save_top_k=-1`).
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from torch import nn

from gnomon.run import Run
from gnomon.step import Step
from gnomon.torch.ranks import mean_of_ranks
from gnomon.torch.weights_hash import weights_hash

log = logging.getLogger("gnomon")


class GnomonCallback(Callback):
    """Reports each optimizer step of a Trainer to `run`, which it finishes at the end.

    Lightning's hook for saving comes before the file exists, so a checkpoint is reported when
    `trainer.save_checkpoint` has returned. What AsyncCheckpointIO writes is complete at no known
    moment; it is not reported, and a warning says so once.
    grad_norm: the norm before clipping is computed for each step. hash_batches: a hash of the batch
    goes with each step. hash_weights: one of the weights goes with each checkpoint.
    For automatic optimization with one optimizer.
    """

    def __init__(
        self,
        run: Run,
        *,
        grad_norm: bool = True,
        hash_batches: bool = True,
        hash_weights: bool = True,
    ) -> None:
        self._run = run
        self._with_grad_norm = grad_norm
        self._hash_batches = hash_batches
        self._hash_weights = hash_weights
        self._step: Step | None = None
        self._begun_at = 0
        self._batch: list[Any] = []
        self._loss: Any = None
        self._grad_norm: Any = None
        self._save: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begins the attempt from the step that the Trainer has loaded."""
        if trainer.global_step > 0 or self._run.resume_from is not None:
            self._run.start_from(trainer.global_step)
        save = self._save = trainer.save_checkpoint

        def save_and_report(
            filepath: Any, weights_only: Any = None, *rest: Any, **more: Any
        ) -> None:
            save(filepath, weights_only, *rest, **more)
            if not weights_only:
                self._report(trainer, pl_module, os.fspath(filepath))

        trainer.save_checkpoint = save_and_report

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A new plan takes effect at the first batch of a step. Raises what `run.step` raises."""
        if self._step is None:
            self._batch, self._loss, self._grad_norm = [], None, None
            self._begun_at = trainer.global_step
            self._step = self._run.step()
            self._step.__enter__()
        if self._hash_batches:
            self._batch.append(batch)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The gradients are whole here, and not clipped yet."""
        if self._with_grad_norm:
            grads = [each.grad for each in pl_module.parameters() if each.grad is not None]
            self._grad_norm = torch.nn.utils.get_total_norm(grads)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the step where the optimizer has taken one: accumulated batches are one step. One of
        batches that were left out alone (`training_step` returned None) is not reported.
        """
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            self._loss = loss if self._loss is None else self._loss + loss
        step = self._step
        if step is None or trainer.global_step == self._begun_at:
            return
        self._step = None
        if self._loss is None:
            return step._skip()  # the Trainer has counted it
        if self._batch:
            step.batch(self._batch)
        rates = [group["lr"] for each in trainer.optimizers for group in each.param_groups]
        loss = mean_of_ranks(self._loss)
        step.log(loss=loss, grad_norm=self._grad_norm, learning_rate=rates[0])
        step.__exit__(None, None, None)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports the end, behind the last checkpoint."""
        self._put_back(trainer)
        steps, epochs = trainer.max_steps, trainer.max_epochs
        whole = trainer.global_step >= steps > 0 or (
            epochs is not None and trainer.current_epoch >= epochs > 0
        )
        self._run.finish("completed" if whole else "stopped")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends a step that is under way; the run may be started again."""
        if self._step is not None:
            step, self._step = self._step, None
            step.__exit__(type(exception), exception, exception.__traceback__)
        self._put_back(trainer)

    def _report(self, trainer: Any, pl_module: nn.Module, path: str) -> None:
        if isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            return log.warning("%s is written by AsyncCheckpointIO, so it is not reported", path)
        digest = weights_hash(pl_module) if self._hash_weights else None
        self._run.checkpoint(path, step=trainer.global_step, weights_hash=digest)

    def _put_back(self, trainer: Any) -> None:
        if self._save is not None:
            trainer.save_checkpoint = self._save
            self._save = None
