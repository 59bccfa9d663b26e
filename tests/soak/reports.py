"""The bodies of what trainers send, as protocol/records.h has them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from truth import BASE_PLAN, FINGERPRINT, LAYERS, SITES, Truth, digits, number

Body = dict[str, Any]


def registration(name: str, job: str, steps: int, root: str, inline: bool) -> Body:
    fault = {"kind": "simulated", "site": SITES[1], "start_step": 1, "end_step": 0, "description": "of a soak"}
    return {
        "name": name,
        "job_id": job,
        "fingerprint": FINGERPRINT,
        "base_plan": BASE_PLAN,
        "sites": SITES,
        "layers": LAYERS,
        "parameters": 1_000_000,
        "total_steps": steps,
        "tokens_per_step": 64,
        "checkpoint_every": 5,
        "seed": 1,
        "checkpoint_root": root,
        "faults": [fault],
        "last_directive": 0,
        "newest_plan_version": 0,
        "trainer_replays": inline,
    }


def attempt(name: str, number_: int, base: int, cause: str, version: int) -> Body:
    return {
        "attempt": number_,
        "base_step": base,
        "cause": cause,
        "plan_version": version,
        "time": time.time(),
        "fingerprint": FINGERPRINT,
        "host": f"node-{name}",
    }


def checkpoint(root: str, attempt_: int, step_: int, version: int, weights: str) -> Body:
    return {
        "attempt": attempt_,
        "step": step_,
        "uri": f"{root}/attempt-{attempt_}-step-{step_}",
        "plan_version": version,
        "bytes": 1000,
        "manifest_hash": digits("manifest", weights),
        "weights_hash": weights,
        "time": time.time(),
    }


def misfortune(draw: random.Random, not_finite: float, spike: float) -> tuple[Callable[[float], float] | None, float]:
    """What becomes of a step's loss (None: nothing), and its gradient norm."""
    chance = draw.random()
    if chance < not_finite:
        broken = draw.choice([float("nan"), float("inf"), float("-inf")])
        return (lambda _: broken), 1 / 3
    if chance < not_finite + spike:
        factor = draw.choice([1.5, 3, 20])
        return (lambda loss: factor * loss), 1 / 3
    return None, float("nan") if chance < 1.3 * not_finite + spike else 1 / 3


def step(truth: Truth, attempt_: int, step_: int, version: int, norm: float, seconds: float) -> Body:
    return {
        "attempt": attempt_,
        "step": step_,
        "plan_version": version,
        "loss": number(truth.loss(attempt_, step_)),
        "grad_norm": number(norm),
        "learning_rate": 1e-3,
        "tokens": 64,
        "step_seconds": seconds,
        "weights_hash": truth.weights(attempt_, step_),
        "time": time.time(),
        "batch_hash": f"batch-{step_}",
    }


def device_health(draw: random.Random, step_: int) -> Body:
    """A GPU that is lost now and then, and that counts memory errors."""
    body: Body = {"device": "0000:01:00.0", "name": "NVIDIA H200", "time": time.time()}
    if draw.random() < 0.05:
        return body | {"error": "GPU is lost"}
    return body | {
        "sm_clock_mhz": 1500.5,
        "power_watts": 600.5,
        "power_limit_watts": 700,
        "temperature_celsius": 60,
        "memory_used_bytes": 1 << 36,
        "memory_total_bytes": 1 << 37,
        "utilization_percent": 100,
        "ecc_corrected": step_,
        "ecc_uncorrected": step_ // 40,
        "throttle_reasons": draw.choice([[], ["sw_power_cap"], ["idle", "hw_slowdown"]]),
        "remapped_rows_pending": draw.random() < 0.1,
        "remapped_rows_failure": False,
    }


def notice(draw: random.Random, attempt_: int, step_: int) -> Body:
    kind = draw.choice(
        ["checkpoint_failed", "reports_dropped", "plan_without_controller", "data_mismatch", "gradient_mismatch"]
    )
    with_plan = kind == "plan_without_controller"
    return {
        "attempt": attempt_,
        "step": step_,
        "kind": kind,
        "text": f"no room at step {step_}",
        "plan": BASE_PLAN if with_plan else "",
        "plan_version": 900_000 + step_ if with_plan else 0,
        "time": time.time(),
    }


def statistics(draw: random.Random, attempt_: int, step_: int, version: int) -> Body:
    rows: list[Body] = []
    for site in SITES:
        rows.append({"site": site, "tensor": "input", "elements": 1000, "kurtosis": 3 + draw.random(), "nans": 0})
        for tensor, gemm in (("input", "fprop"), ("weight", "fprop"), ("gradient", "dgrad")):
            rows.append(
                {
                    "site": site,
                    "tensor": tensor,
                    "gemm": gemm,
                    "recipe": "current",
                    "in_use": True,
                    "elements": 1000,
                    "underflow": draw.random(),
                    "saturation": 0.1 * draw.random(),
                    "sqnr_db": number(draw.choice([30.0, float("inf"), 12.5])),
                    "histogram_lowest": -20,
                    "histogram": [1, 2, 3],
                }
            )
    return {"attempt": attempt_, "step": step_, "plan_version": version, "rows": rows, "time": time.time()}


def finished(outcome: str, step_: int) -> Body:
    return {"outcome": outcome, "step": step_, "final_loss": 3.3, "train_seconds": float(step_), "time": time.time()}
