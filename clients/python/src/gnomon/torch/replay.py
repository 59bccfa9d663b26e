"""Replays of a window by the user's own training code, for a verifier process.

    def make_job() -> gnomon.torch.Job: ...

    verifier = gnomon.torch.make_verifier(make_job)      # gnomon-verify module:verifier

The job is what the trainer itself is made of: a model whose layers `adopt` has turned, its
optimizer, the batch of a step, a training step, a held-out evaluation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from gnomon.torch.plan_linear import set_plan, set_step
from gnomon.torch.ranks import world_size
from gnomon.torch.scaled_gemm import kernel_of
from gnomon.torch.weights_hash import weights_hash
from gnomon.verify import ReplayResult, ReplayTask, Unsupported, Verifier, verifier

REPLAYED_ARMS = ("bf16", "same", "plan", "fakequant", "bf16-perturbed")

# Loss of a step before its update, and the norm of its gradient before clipping; tensors or floats.
StepOutcome = tuple[Any, Any]


@dataclass
class Job:
    """What a training run is made of.

    train_step: does one whole step with a batch and returns (loss, gradient norm): the mean loss
    before the update in nats per token, the norm before clipping.
    batch: the batch of a step, as the trainer gave it to `run.step(batch=...)`; a pure function.
    evaluate: the mean loss in nats per token of each held-out sequence, a vector, by the model as
    it is now. It has to leave no trace: eval mode, no gradients, no random numbers.
    heldout_tokens: how many tokens `evaluate` reads.
    state: what a checkpoint keeps besides the model, like {"optimizer": optimizer}.
    faults: those that the trainer has switched on too.
    """

    model: nn.Module
    train_step: Callable[[Any], StepOutcome]
    batch: Callable[[int], Any]
    evaluate: Callable[[], Tensor]
    heldout_tokens: int
    state: Mapping[str, Stateful] = field(default_factory=dict)
    faults: Sequence[Fault] = ()


def replay(job: Job, task: ReplayTask) -> ReplayResult:
    """Replays a task from a checkpoint of the format `torch`. Raises Unsupported for an arm that
    PlanLinear does not have, DamagedCheckpoint, Rejected, LeaseLost.
    """
    if task.arm not in REPLAYED_ARMS:
        raise Unsupported(f"arm {task.arm}")
    clock = _Clock()
    plan = _load(job, task.checkpoint, task.start_step)
    set_plan(job.model, plan)
    set_step(job.model, task.start_step, job.faults)
    result = ReplayResult(steps=())
    # The run's own end comes first: the replay's state then stays in the model.
    end_losses = None
    if task.evaluate_endpoints and task.end_checkpoint:
        _load(job, task.end_checkpoint, task.start_step + task.steps)
        end_losses = heldout_losses(job, "bf16")
        result.run_end_loss_bf16 = float(end_losses.mean())
        _load(job, task.checkpoint, task.start_step)
    if task.evaluate_endpoints:
        result.start_loss_bf16 = float(heldout_losses(job, "bf16").mean())
        result.start_loss_plan = float(heldout_losses(job, "same").mean())
        result.start_loss_fakequant = float(heldout_losses(job, "fakequant").mean())
    if task.perturb:
        nudge(job.model, task.perturb, task.perturb_scale)
    result.eval_seconds = clock.lap()
    perturbed = task.arm == "bf16-perturbed"
    with arm(job.model, "bf16" if perturbed else task.arm, task.plan):
        batches = ((step, job.batch(step)) for step in range(task.first_step, task.last_step + 1))
        result.steps = replay_steps(job, batches, task.progress, perturbed)
    result.replay_seconds = clock.lap()
    if result.steps and math.isfinite(result.steps[-1].loss):
        losses = heldout_losses(job, "bf16")
        result.replay_end_loss_bf16 = float(losses.mean())
        if end_losses is not None:
            result.gap_error = standard_error(end_losses - losses)
    result.heldout_tokens = job.heldout_tokens
    result.eval_seconds += clock.lap()
    return result


def replay_steps(
    job: Job,
    batches: Iterable[tuple[int, Any]],
    progress: Callable[[int], None],
    perturbed: bool = False,
) -> list[ReplayStep]:
    """Trains on the batches of the steps, in the arm that the model is in, and returns each step,
    up to one whose loss is not finite. The last has the hash of the weights behind it.
    `perturbed`: the sequences of each batch come in another order, so that sums differ.
    """
    steps: list[ReplayStep] = []
    for step, batch in batches:
        set_step(job.model, step, job.faults)
        given = reordered(batch, step) if perturbed else batch
        loss, norm = (float(value) for value in job.train_step(given))
        steps.append(ReplayStep(step, loss, grad_norm=norm, batch_hash=batch_hash(batch)))
        progress(len(steps))
        if not math.isfinite(loss):
            break
    if steps:
        steps[-1].weights_hash = weights_hash(job.model)
    return steps


def reordered(batch: Any, seed: int) -> Any:
    """Returns a tensor, or a mapping, list or tuple of tensors, with its rows (dimension 0) in an
    order that `seed` says. Raises Unsupported for a batch of anything else.
    """
    if isinstance(batch, Tensor):
        generator = torch.Generator().manual_seed(seed)
        return batch[torch.randperm(batch.shape[0], generator=generator).to(batch.device)]
    if isinstance(batch, Mapping):
        return {name: reordered(each, seed) for name, each in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(reordered(each, seed) for each in batch)
    raise Unsupported(f"bf16-perturbed of a batch of type {type(batch).__name__}")


def heldout_losses(job: Job, arm_name: str) -> Tensor:
    """Returns the loss of each held-out sequence in an arm, on the CPU in FP64.
    Raises ValueError where `evaluate` returns no vector.
    """
    with arm(job.model, arm_name), torch.no_grad():
        losses = job.evaluate()
    if losses.dim() != 1 or losses.numel() == 0:
        raise ValueError(f"evaluate returned the shape {tuple(losses.shape)}; expected [sequences]")
    return losses.detach().double().cpu()


def standard_error(differences: Tensor) -> float:
    """Returns the standard error of the mean of paired differences; 0 for one sequence."""
    if differences.numel() < 2:
        return 0.0
    return float(differences.std() / math.sqrt(differences.numel()))


def fingerprint(build: str = "") -> Fingerprint:
    """Returns what bits depend on here: device, PyTorch, FP8 kernel, ranks, threads."""
    cuda = torch.cuda.is_available()
    device = torch.cuda.get_device_name() if cuda else _cpu_name()
    kind = "cuda" if cuda else "cpu"
    libraries = f"torch {torch.__version__}, FP8 products by {kernel_of(kind)}"
    if cuda:
        libraries += f", cuda {torch.version.cuda}, cudnn {_cudnn_version()}"
    libraries += f", deterministic {torch.are_deterministic_algorithms_enabled()}"
    return Fingerprint(
        device, kind, libraries, build or "gnomon-client", world_size(), torch.get_num_threads()
    )


def make_verifier(make_job: Callable[[], Job], build: str = "") -> Verifier:
    """Returns a verifier of the arms that PlanLinear has. `make_job` is called once, when the first
    task comes; `build` names the version of the job's code, as the run's fingerprint does.
    """
    jobs: list[Job] = []

    def replay_task(task: ReplayTask) -> ReplayResult:
        if not jobs:
            jobs.append(make_job())
        return replay(jobs[0], task)

    return verifier(
        arms=REPLAYED_ARMS,
        checkpoint_formats=(checkpoint.FORMAT,),
        frameworks=("pytorch",),
        fingerprint=lambda: fingerprint(build),
    )(replay_task)


def _load(job: Job, path: str, step: int) -> PrecisionPlan:
    found, plan = checkpoint.load(path, model=job.model, state=job.state)
    if found != step:
        raise checkpoint.DamagedCheckpoint(f"{path} is of step {found}, not {step}")
    return plan


def _cudnn_version() -> int | None:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else 'CPU'} ({capability})"


class _Clock:
    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Returns the seconds since the lap before."""
        before, self._since = self._since, time.perf_counter()
        return self._since - before
