"""Runs the plain example's trainer or verifier with a fault that FP8 alone has at one layer.

python example_with_fault.py train_supervised.py --max_iters 1000
gnomon-verify example_with_fault:verifier
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import gnomon.torch
from gnomon.step import Step

SITE, FIRST_STEP = "h.1.c_fc_proj", 121
FAULT = gnomon.torch.Fault(SITE, FIRST_STEP, 1 << 40, "scale_shift", "input", 7)


def __getattr__(name: str) -> Any:
    """`verifier`, made of the example's job when it is asked for."""
    if name != "verifier":
        raise AttributeError(name)
    import verifier  # type: ignore[import-not-found]

    def make_job() -> gnomon.torch.Job:
        job: gnomon.torch.Job = verifier.make_job()
        job.faults = (FAULT,)
        return job

    return gnomon.torch.make_verifier(make_job)


def main() -> None:
    models: list[Any] = []
    init, enter = gnomon.torch.init, Step.__enter__

    def keep_and_init(model: Any, *arguments: Any, **options: Any) -> gnomon.Run:
        models.append(model)
        return init(model, *arguments, **options)

    def enter_with_fault(step: Step) -> Step:
        enter(step)
        gnomon.torch.set_step(models[0], step.step, (FAULT,))
        return step

    gnomon.torch.init = keep_and_init
    Step.__enter__ = enter_with_fault  # type: ignore[method-assign]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
