"""Whether a replay's result is one of its window: what is wrong is said before it is sent.

A function's mistake must not look like FP8's damage, so nothing is mended or left out here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gnomon.records import Fingerprint, ReplayStep
from gnomon.records import ReplayResult as ResultMessage
from gnomon.verify import ReplayFailed, ReplayResult, ReplayTask


def check_result(task: ReplayTask, result: Any) -> ReplayResult:
    """The result. Raises ReplayFailed with what is wrong, the value, and what is expected."""
    if not isinstance(result, ReplayResult):
        raise ReplayFailed(
            f"the replay returned {type(result).__name__}; expected a gnomon.ReplayResult"
        )
    _check_numbers(result)
    if task.arm == "scores":
        if not result.scores:
            raise ReplayFailed("the result has no scores; arm `scores` is about nothing else")
        return result
    finite = _check_steps(task, result.steps)
    end = result.replay_end_loss_bf16
    if finite and end is None:
        raise ReplayFailed(
            "replay_end_loss_bf16 is missing; expected the held-out loss in BF16 behind the last "
            "step: without it no window can be judged"
        )
    if finite and end is not None and not math.isfinite(end):
        raise ReplayFailed(
            f"replay_end_loss_bf16 is {end} although the loss of every step is finite: the "
            "evaluation is broken"
        )
    _check_endpoints(task, result, finite)
    return result


def _check_steps(task: ReplayTask, steps: Sequence[ReplayStep]) -> bool:
    """Whether the replay stayed finite."""
    window = f"window {task.window} has steps {task.first_step} to {task.last_step}"
    if len(steps) > task.steps:
        raise ReplayFailed(f"the result has {len(steps)} steps; {window}")
    for place, step in enumerate(steps):
        if not isinstance(step, ReplayStep):
            raise ReplayFailed(
                f"steps[{place}] is {type(step).__name__}; expected a gnomon.ReplayStep"
            )
        expected = task.first_step + place
        if step.step != expected:
            raise ReplayFailed(
                f"steps[{place}] is of step {step.step}; expected step {expected}: {window}"
            )
        if not _is_finite(step) and place + 1 < len(steps):
            raise ReplayFailed(
                f"step {step.step} is not finite (loss {step.loss}, grad_norm {step.grad_norm}), "
                f"but the replay went on to step {steps[-1].step}; expected it to end there"
            )
    finite = all(_is_finite(step) for step in steps)
    if finite and len(steps) < task.steps:
        raise ReplayFailed(
            f"the replay ended after {len(steps)} of {task.steps} steps, and they are finite; "
            + window
        )
    return finite


def _is_finite(step: ReplayStep) -> bool:
    return math.isfinite(step.loss) and (step.grad_norm is None or math.isfinite(step.grad_norm))


def _check_numbers(result: ReplayResult) -> None:
    """Types: a tensor that was left as it is, or a text."""
    for name in (
        "replay_end_loss_bf16",
        "start_loss_bf16",
        "start_loss_plan",
        "start_loss_fakequant",
        "run_end_loss_bf16",
        "gap_error",
        "replay_seconds",
        "eval_seconds",
    ):
        _require_number(name, getattr(result, name))
    for place, step in enumerate(result.steps):
        if isinstance(step, ReplayStep):
            _require_number(f"steps[{place}].loss", step.loss)
            _require_number(f"steps[{place}].grad_norm", step.grad_norm)
    for name in ("gap_error", "replay_seconds", "eval_seconds"):
        value = getattr(result, name)
        if value is not None and not 0 <= value < math.inf:
            raise ReplayFailed(f"{name} is {value}; expected a finite number from 0 on")


def _require_number(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ReplayFailed(f"{name} is {type(value).__name__} {value!r:.60}; expected a float")


def _check_endpoints(task: ReplayTask, result: ReplayResult, finite: bool) -> None:
    if not task.evaluate_endpoints:
        return
    needed = ["start_loss_bf16", "start_loss_plan"]
    needed += ["run_end_loss_bf16"] if task.end_checkpoint else []
    for name in needed:
        if getattr(result, name) is None:
            raise ReplayFailed(f"{name} is missing; the task has evaluate_endpoints")
    start = result.start_loss_bf16
    if finite and result.steps and start is not None and not math.isfinite(start):
        raise ReplayFailed(
            f"start_loss_bf16 is {start} although the loss of every step is finite: the "
            "evaluation is broken"
        )


def message_of(
    result: ReplayResult, token: int, time: float, fingerprint: Fingerprint
) -> ResultMessage:
    """The message of a result that `check_result` has passed."""
    message = ResultMessage(token, fingerprint, list(result.steps))
    for name in (
        "start_loss_bf16",
        "start_loss_plan",
        "start_loss_fakequant",
        "run_end_loss_bf16",
        "replay_end_loss_bf16",
        "gap_error",
        "heldout_tokens",
        "replay_seconds",
        "eval_seconds",
    ):
        setattr(message, name, getattr(result, name))
    message.scores = list(result.scores) or None
    message.time = time
    return message


def first_other_batch(steps: Sequence[ReplayStep], of_run: dict[int, str]) -> tuple[int, str, str]:
    """The first step whose batch hash is not the run's, with both; (0, "", "") for none."""
    for step in steps:
        own, its = step.batch_hash or "", of_run.get(step.step, "")
        if own and its and own != its:
            return step.step, own, its
    return 0, "", ""
