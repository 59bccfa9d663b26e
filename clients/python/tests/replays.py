"""Replay functions as people write them, good and bad. Run as `replays:NAME` in a process."""

from __future__ import annotations

import math
import os
import signal
import sys
import time

import gnomon


def result(task: gnomon.ReplayTask, loss: float = 2.0) -> gnomon.ReplayResult:
    steps = [
        gnomon.ReplayStep(step=step, loss=loss, grad_norm=1.0)
        for step in range(task.first_step, task.last_step + 1)
    ]
    return gnomon.ReplayResult(
        steps=steps,
        replay_end_loss_bf16=2.0,
        start_loss_bf16=2.0,
        start_loss_plan=2.0,
        run_end_loss_bf16=2.0,
        gap_error=0.001,
    )


@gnomon.verifier(arms=("bf16", "same"), frameworks=("toy",))
def good(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    for done in range(task.steps):
        task.progress(done + 1)
    return result(task)


def plain(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    return result(task)


def raises(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    raise ValueError("no such shard")


def not_for_me(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    raise gnomon.Unsupported("arm fakequant needs a kernel")


def hangs(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    while True:
        time.sleep(1)


def hangs_politely(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    while True:
        task.check()
        time.sleep(0.02)


def exits(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    os._exit(3)


def is_killed(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    os.kill(os.getpid(), signal.SIGKILL)
    return result(task)


def leaves(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    sys.exit(1)


def nothing(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    return None  # type: ignore[return-value]


def becomes_nan(task: gnomon.ReplayTask) -> gnomon.ReplayResult:
    return result(task, math.nan)
