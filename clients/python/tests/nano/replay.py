"""The verifier of the loop in `train.py`: `gnomon-verify nano.replay:replay`."""

from __future__ import annotations

import math
import os
import time

import gnomon
from nano.model import Model, bf16, evaluate, get_batch, load_into

PLAN = gnomon.PrecisionPlan.load(os.environ.get("NANO_PLAN", "plan.toml"))


@gnomon.verifier(arms=("bf16", "same", "plan", "bf16-perturbed"), exact_replay=True)
def replay(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    begun = time.monotonic()
    plan = (task.plan or PLAN).bind(Model().sites, layers=2)

    def own(site: str, gemm: str) -> bool:
        return plan.gemm(site, gemm).fp8

    run_end = None
    if task.end_checkpoint and task.evaluate_endpoints:
        run_end = evaluate(load_into(Model(), task.end_checkpoint))
    model = load_into(Model(), task.checkpoint)
    result = gnomon.ReplayResult(steps=[])
    if task.evaluate_endpoints:
        result.start_loss_bf16 = mean(evaluate(model))
        result.start_loss_plan = mean(evaluate(model, own))
        result.run_end_loss_bf16 = mean(run_end) if run_end else None
    model.is_fp8 = bf16 if task.arm.startswith("bf16") else own
    model.nudge(task.perturb, task.perturb_scale or 1e-7)
    steps = []
    for step in range(task.first_step, task.last_step + 1):
        tokens = get_batch(step)
        loss, kept = model.forward(tokens)
        norm = model.update(model.backward(tokens, kept), rate=0.1)
        hashed = gnomon.batch_hash(tokens)
        steps.append(gnomon.ReplayStep(step=step, loss=loss, grad_norm=norm, batch_hash=hashed))
        task.progress(len(steps))
        if not math.isfinite(loss + norm):
            break
    result.steps = steps
    if all(math.isfinite(each.loss) for each in steps):
        end = evaluate(model)
        result.replay_end_loss_bf16 = mean(end)
        result.gap_error = paired_error(run_end, end) if run_end else None
    result.replay_seconds = time.monotonic() - begun
    return result


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def paired_error(a: list[float], b: list[float]) -> float:
    """Standard error of the difference of two means over the same sequences."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    centre = mean(differences)
    squares = sum((each - centre) ** 2 for each in differences)
    return math.sqrt(squares / (len(a) - 1) / len(a))
