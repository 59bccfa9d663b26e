"""The self-test of resuming, and scalars that are read later."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

import torch
from torch_device import DEVICE
from torch_job import batch_of, make_job

import gnomon
from gnomon.batch import batch_hash, capture_batch
from gnomon.plan import PrecisionPlan
from gnomon.torch import attach, checkpoint, resume_self_test
from gnomon.torch.scalars import capture


@pytest.mark.parametrize("plan", [None, PrecisionPlan.fp8()])
def test_a_whole_checkpoint_passes(plan: PrecisionPlan | None) -> None:
    result = resume_self_test(make_job(), 4, plan)
    assert result.passed, result.sentence
    assert "4 steps" in result.sentence


@pytest.mark.parametrize(("left_out", "first"), [("optimizer", 5), ("scheduler", 9)])
def test_what_a_checkpoint_leaves_out_is_noticed(left_out: str, first: int) -> None:
    job = make_job()
    state = {name: each for name, each in job.state.items() if name != left_out}

    def save(path: pathlib.Path, step: int) -> None:
        plan = PrecisionPlan.bf16()
        checkpoint.save(path, step=step, model=job.model, plan=plan, state=state)

    def load(path: str, step: int) -> None:
        checkpoint.load(path, model=job.model, state=state)

    result = resume_self_test(job, 8 if left_out == "scheduler" else 4, None, save, load)
    assert not result.passed
    assert result.first_other_step >= first
    assert "from it" in result.sentence


def test_a_loader_that_does_not_repeat_is_named() -> None:
    job = make_job()
    calls = iter(range(1, 1000))
    job.batch = lambda step: batch_of(next(calls))
    result = resume_self_test(job, 3)
    assert result.sentence.startswith("step 4: batch_hash")


def test_a_tensor_is_what_it_was_when_it_was_logged() -> None:
    loss = torch.tensor(2.5, requires_grad=True, device=DEVICE)
    batch = batch_of(1)
    want = batch_hash(batch)
    kept, kept_batch = capture(loss), capture_batch(batch)
    with torch.no_grad():
        loss.zero_()
        batch.zero_()
    assert float(kept) == 2.5
    assert not kept.detach().requires_grad
    assert batch_hash(kept_batch) == want
    assert capture(3) == 3.0


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU: GNOMON_TEST_DEVICE=cuda")
def test_a_loop_does_not_wait_for_what_a_gpu_has_been_given() -> None:
    loss, batch = torch.tensor(2.5, device=DEVICE), batch_of(1)
    capture(loss), capture_batch(batch)  # the first pinned memory
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # type: ignore[no-untyped-call]  # cycles: half a second
    begin = time.perf_counter()
    kept = [capture(loss), capture_batch(batch)]
    loss.zero_()
    assert time.perf_counter() - begin < 0.05
    assert float(kept[0]) == 2.5
    assert time.perf_counter() - begin > 0.2


def test_attached_a_step_costs_little(tmp_path: pathlib.Path) -> None:
    run = gnomon.init(
        project="p", name="n", plan=PrecisionPlan.fp8(), sites=["a"], layers=0, mode="offline",
        directory=tmp_path,
    )  # fmt: skip
    attach(run)
    loss: Any = torch.tensor(2.5, device=DEVICE)
    norm: Any = torch.tensor(0.5, device=DEVICE)
    costs = []
    for _ in range(2000):
        begin = time.perf_counter()
        with run.step() as s:
            s.log(loss=loss, grad_norm=norm)
        costs.append(time.perf_counter() - begin)
        time.sleep(0.0005)
    run.finish()
    costs.sort()
    median, quick = costs[len(costs) // 2], costs[len(costs) // 10]
    print(f"a step costs {median * 1e6:.1f} us in the median, {quick * 1e6:.1f} at the tenth part")
    # The median is the promise, and a busy machine's median is no measure. Two copies of a GPU's
    # tensors took 68 us beside an H200.
    assert quick < (50e-6 if DEVICE == "cpu" else 150e-6)
