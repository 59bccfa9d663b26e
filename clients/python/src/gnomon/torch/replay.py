"""Replays of a window by the user's own training code, for a verifier process.

    def make_job() -> gnomon.torch.Job: ...

    verifier = gnomon.torch.make_verifier(make_job)      # gnomon-verify module:verifier

The job is what the trainer itself is made of: a model whose layers `adopt` has turned, its
optimizer, the batch of a step, a training step, a held-out evaluation.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gnomon.batch import batch_hash
from gnomon.plan import PrecisionPlan
from gnomon.records import Fingerprint, ReplayStep
from gnomon.torch import checkpoint
from gnomon.torch.arms import arm, nudge
from gnomon.torch.checkpoint import Stateful
from gnomon.torch.faults import Fault
from gnomon.torch.fingerprint import fingerprint
from gnomon.torch.plan_linear import set_plan, set_step
from gnomon.torch.ranks import all_gathered
from gnomon.torch.weights_hash import weights_hash
from gnomon.verify import ReplayResult, ReplayTask, Unsupported, Verifier, verifier

REPLAYED_ARMS = ("bf16", "same", "plan", "fakequant", "bf16-perturbed")

# Loss of a step before its update, and the norm of its gradient before clipping; tensors or floats.
StepOutcome = tuple[Any, Any]

# Has the layers run in an arm, under a plan where one is given, and as before behind it.
ArmContext = Callable[[str, PrecisionPlan | None], AbstractContextManager[None]]


@dataclass
class Job:
    """What a training run is made of.

    train_step: does one whole step with a batch and returns (loss, gradient norm): the mean loss
    before the update in nats per token, the norm before clipping.
    batch: the batch of a step, as the trainer gave it to `run.step(batch=...)`; a pure function.
    evaluate: the mean loss in nats per token of each held-out sequence of this rank, a vector, by
    the model as it is now. It leaves no trace: eval mode, no random numbers.
    heldout_tokens: how many tokens `evaluate` reads.
    state: what a checkpoint keeps besides the model, like {"optimizer": optimizer}.
    faults: those that the trainer has switched on too.
    arms, arm: what the layers can run in, and `arm(name, plan)` as a context in which they do; for
    other layers than PlanLinear.
    """

    model: nn.Module
    train_step: Callable[[Any], StepOutcome]
    batch: Callable[[int], Any]
    evaluate: Callable[[], Tensor]
    heldout_tokens: int
    state: Mapping[str, Stateful] = field(default_factory=dict)
    faults: Sequence[Fault] = ()
    arms: Sequence[str] = ("bf16", "same", "plan", "fakequant")
    arm: ArmContext | None = None

    def in_arm(self, name: str, plan: PrecisionPlan | None = None) -> AbstractContextManager[None]:
        """Returns the context of an arm. Raises Unsupported for one that the job does not have."""
        if name not in self.arms:
            raise Unsupported(f"arm {name}; this job has {', '.join(self.arms)}")
        return arm(self.model, name, plan) if self.arm is None else self.arm(name, plan)


def replay(
    job: Job, task: ReplayTask, load: Callable[[str, int], None] | None = None
) -> ReplayResult:
    """Replays a task. `load(uri, step)` puts the job into the state of that step, its plan too; by
    default from a checkpoint of the format `torch`. All ranks of a job call it together.
    Raises Unsupported for an arm that the job lacks, DamagedCheckpoint, Rejected, LeaseLost.
    """
    load = load or functools.partial(load_checkpoint, job)
    perturbed = task.arm == "bf16-perturbed"
    context = job.in_arm("bf16" if perturbed else task.arm, task.plan)
    clock = _Clock()
    result = ReplayResult(steps=())
    # The run's own end comes first: the replay's state then stays in the model.
    end_losses = None
    if task.evaluate_endpoints and task.end_checkpoint:
        load(task.end_checkpoint, task.last_step)
        end_losses = heldout_losses(job, "bf16")
        result.run_end_loss_bf16 = float(end_losses.mean())
    load(task.checkpoint, task.start_step)
    set_step(job.model, task.start_step, job.faults)
    if task.evaluate_endpoints:
        result.start_loss_bf16 = float(heldout_losses(job, "bf16").mean())
        result.start_loss_plan = float(heldout_losses(job, "same").mean())
        if "fakequant" in job.arms:
            result.start_loss_fakequant = float(heldout_losses(job, "fakequant").mean())
    if task.perturb:
        nudge(job.model, task.perturb, task.perturb_scale)
    result.eval_seconds = clock.lap()
    with context:
        batches = ((step, job.batch(step)) for step in range(task.first_step, task.last_step + 1))
        result.steps = replay_steps(job, batches, task.progress, perturbed)
    result.replay_seconds = clock.lap()
    if result.steps and _is_finite(result.steps[-1]):
        losses = heldout_losses(job, "bf16")
        result.replay_end_loss_bf16 = float(losses.mean())
        if end_losses is not None:
            result.gap_error = standard_error(end_losses - losses)
    result.heldout_tokens = job.heldout_tokens
    result.eval_seconds += clock.lap()
    return result


def load_checkpoint(job: Job, path: str, step: int) -> None:
    """Puts the job into the state of a checkpoint of the format `torch`, under its plan. What a
    replay that failed has left of gradients goes.
    """
    found, plan = checkpoint.load(path, model=job.model, state=job.state)
    if found != step:
        raise checkpoint.DamagedCheckpoint(f"{path} is of step {found}, not {step}")
    set_plan(job.model, plan)
    job.model.zero_grad(set_to_none=True)


def replay_steps(
    job: Job,
    batches: Iterable[tuple[int, Any]],
    progress: Callable[[int], None],
    perturbed: bool = False,
) -> list[ReplayStep]:
    """Trains on the batches of the steps, in the arm that the model is in, and returns each step,
    up to one that is not finite. The last has the hash of the weights behind it.
    `perturbed`: the sequences of each batch come in another order, so that sums differ.
    """
    steps: list[ReplayStep] = []
    for step, batch in batches:
        set_step(job.model, step, job.faults)
        loss, norm = job.train_step(reordered(batch, step) if perturbed else batch)
        values = all_gathered(float(loss))
        mean = math.fsum(values) / len(values)
        steps.append(ReplayStep(step, mean, grad_norm=float(norm), batch_hash=batch_hash(batch)))
        progress(len(steps))
        if not _is_finite(steps[-1]):
            break
    if steps:
        steps[-1].weights_hash = weights_hash(job.model)
    return steps


def _is_finite(step: ReplayStep) -> bool:
    return math.isfinite(step.loss) and math.isfinite(step.grad_norm or 0)


def reordered(batch: Any, seed: int) -> Any:
    """Returns a tensor, or a mapping, list or tuple of tensors, with its rows (dimension 0) in an
    order that `seed` says. Raises Unsupported for a batch of anything else.
    """
    if isinstance(batch, Tensor):
        generator = torch.Generator("cpu").manual_seed(seed)
        order = torch.randperm(batch.shape[0], generator=generator, device="cpu")
        return batch[order.to(batch.device)]
    if isinstance(batch, Mapping):
        return {name: reordered(each, seed) for name, each in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(reordered(each, seed) for each in batch)
    raise Unsupported(f"bf16-perturbed of a batch of type {type(batch).__name__}")


def heldout_losses(job: Job, arm_name: str) -> Tensor:
    """Returns the loss of each held-out sequence of all ranks in an arm, on the CPU in FP64.
    Raises ValueError where `evaluate` returns no vector.
    """
    with job.in_arm(arm_name), torch.no_grad():
        losses = job.evaluate()
    if losses.dim() != 1 or losses.numel() == 0:
        raise ValueError(f"evaluate returned the shape {tuple(losses.shape)}; expected [sequences]")
    return torch.cat(all_gathered(losses.detach().double().cpu()))


def standard_error(differences: Tensor) -> float:
    """Returns the standard error of the mean of paired differences; 0 for one sequence."""
    if differences.numel() < 2:
        return 0.0
    return float(differences.std() / math.sqrt(differences.numel()))


def make_verifier(
    make_job: Callable[[], Job],
    build: str = "",
    arms: Sequence[str] = REPLAYED_ARMS,
    exact_replay: bool = False,
) -> Verifier:
    """Returns a verifier of the arms that PlanLinear has, or of `arms`. `make_job` is called once,
    before the first task is asked for; `build` names the version of the job's code, as in the run's
    fingerprint. `exact_replay`: the same task gives the same bits on every verifier of an equal
    fingerprint, as on one kind of CPU with one number of threads; then bits are compared.
    """

    @functools.cache
    def job() -> Job:
        return make_job()

    def its_fingerprint() -> Fingerprint:
        job()  # which may set threads, or deterministic algorithms
        return fingerprint(build)

    def replay_task(task: ReplayTask) -> ReplayResult:
        return replay(job(), task)

    return verifier(
        arms=arms,
        checkpoint_formats=(checkpoint.FORMAT,),
        frameworks=("pytorch",),
        fingerprint=its_fingerprint,
        exact_replay=exact_replay,
    )(replay_task)


class _Clock:
    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Returns the seconds since the lap before."""
        before, self._since = self._since, time.perf_counter()
        return self._since - before
