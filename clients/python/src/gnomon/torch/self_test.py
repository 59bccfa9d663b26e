"""Whether this job goes on from a checkpoint as if nothing had happened, before FP8 depends on it.

A replay starts from a checkpoint. A job whose checkpoints leave something out (the optimizer's
moments, a scheduler, random numbers, scales of FP8) makes every replay differ, which would look
like damage by FP8. In BF16 it is nobody's fault but the checkpoint's.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from gnomon.plan import PrecisionPlan
from gnomon.records import ReplayStep
from gnomon.torch import checkpoint
from gnomon.torch.replay import Job, load_checkpoint, replay_steps


@dataclass(frozen=True)
class SelfTest:
    """What came of `resume_self_test`. first_other_step: 0 where all agree.

    sentence: for people: what agrees, or where it first does not, with both values.
    """

    passed: bool
    first_other_step: int
    sentence: str


def resume_self_test(
    job: Job,
    steps: int = 5,
    plan: PrecisionPlan | None = None,
    save_to: Callable[[pathlib.Path, int], None] | None = None,
    load_from: Callable[[str, int], None] | None = None,
) -> SelfTest:
    """Trains `steps` steps under `plan` (None: BF16), saves a checkpoint, trains as many again,
    goes back to the checkpoint, and compares the repeated steps and the weights behind them.

    save_to(directory, step), load_from(directory, step): the job's own checkpoints; by default
    those of the format `torch`. The job is left behind the steps: make another one to train.
    """
    under = plan or PrecisionPlan.bf16()

    def save_it(path: pathlib.Path, step: int) -> None:
        checkpoint.save(path, step=step, model=job.model, plan=under, state=job.state)

    def load_it(path: str, step: int) -> None:
        load_checkpoint(job, path, step)

    save_to, load_from = save_to or save_it, load_from or load_it

    def train(first: int) -> list[ReplayStep]:
        batches = ((step, job.batch(step)) for step in range(first, first + steps))
        with job.in_arm("bf16" if plan is None else "plan", plan):
            return replay_steps(job, batches, lambda done: None)

    with tempfile.TemporaryDirectory() as folder:
        train(1)
        path = pathlib.Path(folder) / f"step-{steps}"
        save_to(path, steps)
        straight = train(steps + 1)
        load_from(str(path), steps)
        resumed = train(steps + 1)
    return _compare(straight, resumed)


def _compare(straight: list[ReplayStep], resumed: list[ReplayStep]) -> SelfTest:
    for a, b in zip(straight, resumed, strict=False):
        for what in ("batch_hash", "loss", "grad_norm", "weights_hash"):
            first, second = getattr(a, what), getattr(b, what)
            if first != second and not (first != first and second != second):  # two NaN are alike
                sentence = f"step {a.step}: {what} {first} without a checkpoint, {second} from it"
                return SelfTest(False, a.step, sentence)
    if len(straight) != len(resumed):
        step = straight[0].step + min(len(straight), len(resumed))
        return SelfTest(False, step, f"step {step}: only one of the two stayed finite")
    sentence = f"{len(straight)} steps from a checkpoint have the bits of those without it"
    return SelfTest(True, 0, sentence)
