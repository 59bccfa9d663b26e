"""What a replay's result is, as the truth of its job says, and what strange ones are answered with."""

from __future__ import annotations

import random
import time
from typing import Any

from truth import FINGERPRINT, SITES, Truth, number

LOST = (200, 409)  # 409: the lease is over, or the replay is not wanted any more
GONE = (404,)  # its run was deleted meanwhile


def result_of(truth: Truth, lease: dict[str, Any], draw: random.Random, lies: bool = False) -> dict[str, Any]:
    """A replay's result: the trainer's bits in the arm `same`, else numbers near them; gaps as the fault makes them."""
    task = lease["task"]
    attempt, first, end = task["attempt"], task["start_step"] + 1, task["start_step"] + task["steps"]
    arm = task["arm"]
    own = truth.plan_at(attempt, end)
    plan = task["plan"] or own
    in_fp8 = arm in ("same", "plan", "fakequant")
    exact = arm == "same" and not lies and not task["perturb"] and (attempt, end) not in truth.broken_hosts
    steps = []
    for step in range(first, end + 1):
        loss = truth.loss(attempt, step) if exact else truth.usual_loss(attempt, step) + 0.0005 * draw.uniform(-1, 1)
        weights = truth.weights(attempt, step) if exact else f"{draw.getrandbits(64):016x}"
        steps.append(
            {
                "step": step,
                "loss": number(loss),
                "grad_norm": 1 / 3,
                "weights_hash": weights,
                "batch_hash": f"batch-{step}",
            }
        )
    base = truth.usual_loss(0, end)
    gap = truth.fault.gap if truth.fault else 0.0
    result = {
        "token": lease["token"],
        "fingerprint": FINGERPRINT,
        "steps": steps,
        "heldout_tokens": 1024,
        "replay_seconds": 0.3 * task["steps"],
        "eval_seconds": 0.5,
        "time": time.time(),
        "start_loss_bf16": base,
        "start_loss_plan": base + 0.004,
        "run_end_loss_bf16": base + gap * truth.suffers(own, end),
        "replay_end_loss_bf16": base + gap * (in_fp8 and truth.suffers(plan, end)) + 0.0008 * draw.gauss(0, 1),
        "gap_error": 0.0008,
    }
    if arm == "fakequant":
        result["start_loss_fakequant"] = base + 0.004 + (0.01 if draw.random() < 0.1 else 0)
    if arm == "scores":
        result["scores"] = [score_of(truth, site, draw) for site in SITES]
    return result


def score_of(truth: Truth, site: str, draw: random.Random) -> dict[str, Any]:
    blamed = truth.fault is not None and site == truth.fault.site
    small = 0.0008 * abs(draw.gauss(0, 1))
    decibels = number(draw.choice([30.0, 25.0, float("inf")]))
    return {"site": site, "phi": 0.02 if blamed else small, "psi": small, "sqnr_db": decibels}


def spoil(result: dict[str, Any], draw: random.Random) -> tuple[int, ...]:
    """Makes a few results strange; gives the answers that follow."""
    chance = draw.random()
    base = result["start_loss_bf16"]
    if chance < 0.01:
        result["replay_end_loss_bf16"] = "NaN"
        result["steps"] = result["steps"][: max(1, len(result["steps"]) // 2)]
    elif chance < 0.02:
        result["run_end_loss_bf16"] = 3 * base
    elif chance < 0.025:
        result["run_end_loss_bf16"] = "Infinity"
    elif chance < 0.03:
        del result["replay_end_loss_bf16"]
    elif chance < 0.035:
        result["steps"] = []
    elif chance < 0.04:
        result["start_loss_plan"] = 1e38
    elif chance < 0.045:
        result["replay_seconds"] = 1e12
        return (400, 409)
    elif chance < 0.05:
        for step in result["steps"]:
            step["batch_hash"] = "another"
    return LOST
