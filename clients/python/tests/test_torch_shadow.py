"""The shadow in the process: it measures windows and leaves the run's bits alone."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

import torch
from torch_job import batch_of, make_evaluate, make_parts, make_step
from trainer import Inbox, answers, offline, rollback

import gnomon
from gnomon.plan import PrecisionPlan
from gnomon.records import Directive
from gnomon.torch import (
    Fault,
    Shadow,
    ShadowWindow,
    Snapshot,
    adopt,
    set_plan,
    set_step,
    weights_hash,
)
from gnomon.torch.snapshot import Place
from gnomon.verify import ReplayResult, ReplayTask


def make_shadow(**options: Any) -> tuple[Shadow, Any, Any]:
    """A shadow over a fresh model in FP8, its model and its optimizer."""
    model, optimizer, scheduler = make_parts()
    adopt(model, PrecisionPlan.fp8())
    train_step = options.pop("train_step", make_step)(model, optimizer, scheduler)
    shadow = Shadow(
        model, optimizer, scheduler, train_step=train_step, evaluate=make_evaluate(model), **options
    )
    return shadow, model, optimizer


def run_with_shadow(last: int, **options: Any) -> tuple[list[float], list[ShadowWindow], str]:
    shadow, model, _ = make_shadow(**options)
    losses, windows = [], []
    for step in range(1, last + 1):
        losses.append(float(shadow.step(batch_of(step))[0]))
        window = shadow.verify()
        if window is not None:
            windows.append(window)
    return losses, windows, weights_hash(model)


def run_alone(last: int, faults: tuple[Fault, ...] = ()) -> tuple[list[float], str]:
    model, optimizer, scheduler = make_parts()
    adopt(model, PrecisionPlan.fp8())
    train_step = make_step(model, optimizer, scheduler)
    losses = []
    for step in range(1, last + 1):
        set_step(model, step, faults)
        losses.append(float(train_step(batch_of(step))[0]))
    return losses, weights_hash(model)


@pytest.mark.parametrize("place", ["host", "device", "disk"])
def test_the_run_has_the_bits_of_one_without_a_shadow(place: Place, tmp_path: pathlib.Path) -> None:
    want = run_alone(14)
    arms = ("bf16", "same", "fakequant")
    losses, windows, weights = run_with_shadow(
        14, every=5, steps=4, arms=arms, place=place, directory=str(tmp_path)
    )
    assert (losses, weights) == want
    assert [window.start_step for window in windows] == [0, 5, 10]
    for window in windows:
        assert window.run_losses == losses[window.start_step : window.start_step + 4]
        same = window.results["same"]
        assert window.reproduces("same")
        assert [step.loss for step in same.steps] == window.run_losses
        assert window.gap("same") == 0
        assert not window.reproduces("bf16")
        assert same.start_loss_plan != same.start_loss_bf16
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_on_disk_leaves_nothing_whoever_ends(tmp_path: pathlib.Path) -> None:
    model, optimizer, scheduler = make_parts()
    taken = Snapshot(model, optimizer, [scheduler], "disk", tmp_path)
    assert list(tmp_path.iterdir()) == []  # a crash could not take it away
    want = weights_hash(model)
    make_step(model, optimizer, scheduler)(batch_of(1))
    taken.restore()
    taken.restore()
    assert weights_hash(model) == want
    taken.close()


def test_a_shadow_that_diverges_has_no_gap() -> None:
    result = ReplayResult(steps=(), run_end_loss_bf16=2.3)
    window = ShadowWindow(0, [], "", {"bf16": result})
    assert math.isnan(window.gap())
    assert math.isnan(window.gap_percent)


def test_the_shadow_is_the_bf16_run() -> None:
    """A shadow of the first window is a run of its own in BF16."""
    model, optimizer, scheduler = make_parts()
    adopt(model, PrecisionPlan.bf16())
    train_step = make_step(model, optimizer, scheduler)
    want = [float(train_step(batch_of(step))[0]) for step in range(1, 5)]
    _, windows, _ = run_with_shadow(4, every=5, steps=4)
    assert [step.loss for step in windows[0].results["bf16"].steps] == want
    assert windows[0].results["bf16"].steps[-1].weights_hash == weights_hash(model)


def test_a_fault_of_fp8_is_a_gap() -> None:
    fault = Fault("layers.1.down_proj", 9, 0, "scale_shift", "input", log2_factor=8)
    seen: list[ShadowWindow] = []
    losses, windows, weights = run_with_shadow(
        16, every=8, steps=8, faults=(fault,), on_window=seen.append
    )
    assert (losses, weights) == run_alone(16, (fault,))
    healthy, sick = windows
    assert seen == windows
    assert abs(healthy.gap_percent) < 0.3
    assert sick.gap_percent > 1
    assert sick.gap() > 3 * (sick.results["bf16"].gap_error or 0) > 0


def test_what_fails_in_a_replay_leaves_the_run_as_it_was() -> None:
    broken = [False]

    def breaking_step(*parts: Any) -> Any:
        train_step = make_step(*parts)

        def step(batch: Any) -> Any:
            outcome = train_step(batch)
            if broken[0]:
                raise RuntimeError("in the replay")
            return outcome

        return step

    shadow, model, _ = make_shadow(every=5, steps=2, train_step=breaking_step)
    losses = [float(shadow.step(batch_of(step))[0]) for step in (1, 2)]
    broken[0] = True
    with pytest.raises(RuntimeError, match="in the replay"):
        shadow.verify()
    broken[0] = False
    losses += [float(shadow.step(batch_of(step))[0]) for step in (3, 4)]
    assert (losses, weights_hash(model)) == run_alone(4)


def test_a_window_is_given_up_at_a_rollback() -> None:
    shadow, _, _ = make_shadow(every=5, steps=3)
    for step in (1, 2):
        shadow.step(batch_of(step))
    shadow.drop(7)
    shadow.step(batch_of(8))
    assert shadow.verify() is None
    assert shadow.newest_step == 8


FP8 = PrecisionPlan.fp8()


class Supervised:
    """A run offline whose windows adjoin, with what it has reported of them."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.shadow: Shadow
        self.model: Any
        self.run = offline(
            folder,
            sites=["layers.0.down_proj", "layers.1.down_proj"],
            plan=FP8,
            on_plan=lambda plan: set_plan(self.model, plan),
            on_rollback=self.roll_back,
        )
        self.shadow, self.model, _ = make_shadow(every=4, steps=4, run=self.run, keep=8)
        self.losses: dict[tuple[int, int], float] = {}

    def roll_back(self, to: gnomon.Rollback) -> None:
        self.shadow.roll_back(to)

    def train(self, count: int) -> None:
        for _ in range(count):
            with self.run.step() as s:
                loss, norm = self.shadow.step(batch_of(s.step))
                s.log(loss=loss, grad_norm=norm)
            self.losses[s.attempt, s.step] = float(loss)
            self.shadow.verify()
            if s.step % 4 == 0:
                torch.rand(1)  # as an evaluation between two windows

    def obey(self, directive: Directive) -> None:
        assert self.run._lead is not None
        self.run._lead._inbox = Inbox(directive)  # type: ignore[assignment]
        self.run._attend()

    def checkpoints(self) -> dict[tuple[int, int], str]:
        bodies = [json.loads(it[12:]) for it in answers(self.run) if it.startswith("checkpoints ")]
        found = {(body["attempt"], body["step"]): body["uri"] for body in bodies}
        assert len(found) == len(bodies), "the controller refuses a second one of a step"
        return found

    def replayed(self, attempt: int, start: str, start_step: int, end: str) -> list[float]:
        """The losses of a window's steps in the arm of the run itself."""
        task = ReplayTask("", 1, 1, attempt, "same", start, start_step, 4, end_checkpoint=end)
        task.evaluate_endpoints = True
        result = self.shadow._answer(task)
        assert result.replay_end_loss_bf16 == result.run_end_loss_bf16
        return [step.loss for step in result.steps]

    def close(self) -> None:
        self.run._close(0)
        self.shadow.close()


def test_windows_that_adjoin_share_the_state_between_them(tmp_path: pathlib.Path) -> None:
    its = Supervised(tmp_path)
    its.train(8)
    pin = FP8.with_bf16_sites(["layers.1.down_proj"])
    its.obey(Directive(1, "set_plan", plan=pin.to_toml(), plan_version=2))
    its.train(4)
    uris = its.checkpoints()
    assert list(uris) == [(1, 0), (1, 4), (1, 8), (1, 12)]
    for start in (0, 4, 8):  # the last one under the pin
        want = [its.losses[1, step] for step in range(start + 1, start + 5)]
        assert its.replayed(1, uris[1, start], start, uris[1, start + 4]) == want
    its.shadow._keep = 1
    its.train(4)
    assert [window.start.step for window in its.shadow._kept] == [12]
    assert its.replayed(1, uris[1, 12], 12, its.checkpoints()[1, 16])
    its.close()


def test_a_window_may_begin_where_the_run_was_rolled_back_to(tmp_path: pathlib.Path) -> None:
    its = Supervised(tmp_path)
    its.train(9)
    base = its.checkpoints()[1, 4]
    pin = FP8.with_bf16_sites(["layers.1.down_proj"])
    its.obey(rollback(1, 4, base, pin.to_toml(), 2))
    its.train(4)
    uris = its.checkpoints()
    assert list(uris) == [(1, 0), (1, 4), (1, 8), (2, 8)]
    for attempt in (1, 2):  # they have the same steps and other plans
        want = [its.losses[attempt, step] for step in range(5, 9)]
        assert its.replayed(attempt, base, 4, uris[attempt, 8]) == want
    assert its.losses[1, 6] != its.losses[2, 6]
    its.close()


def test_batches_whose_buffer_is_used_again_are_copied() -> None:
    shadow, _, _ = make_shadow(every=5, steps=2, arms=("same",), copy_batches=True)
    buffer = batch_of(1)
    shadow.step(buffer)
    buffer.copy_(batch_of(2))
    shadow.step(buffer)
    window = shadow.verify()
    assert window is not None
    assert window.reproduces("same")


def test_layers_of_another_kind_have_their_own_arms() -> None:
    """Without PlanLinear a shadow would compare a run with itself; so it wants to know how."""
    model, optimizer, scheduler = make_parts()
    callables: Any = {
        "train_step": make_step(model, optimizer, scheduler),
        "evaluate": make_evaluate(model),
    }
    with pytest.raises(gnomon.ConfigError, match="no PlanLinear"):
        Shadow(model, optimizer, **callables)
    asked: list[str] = []

    @contextmanager
    def use_arm(name: str, plan: Any) -> Iterator[None]:
        asked.append(name)
        yield

    shadow = Shadow(model, optimizer, scheduler, every=2, steps=2, use_arm=use_arm, **callables)
    for step in (1, 2):
        shadow.step(batch_of(step))
    window = shadow.verify()
    assert window is not None
    assert window.reproduces("bf16")  # since these arms do nothing
    assert set(asked) == {"bf16", "same"}


def test_numbers_that_make_no_windows_are_refused() -> None:
    with pytest.raises(gnomon.ConfigError, match="steps"):
        make_shadow(every=5, steps=6)
    with pytest.raises(gnomon.ConfigError, match="arms"):
        make_shadow(arms=("scores",))


def test_a_snapshot_restores_gradients_modes_rates_and_random_numbers() -> None:
    model, optimizer, scheduler = make_parts()
    train_step = make_step(model, optimizer, scheduler)
    before = Snapshot(model, optimizer, [scheduler])
    train_step(batch_of(1))
    grads = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    taken = Snapshot(model, optimizer, [scheduler])
    want = weights_hash(model)
    draw = torch.rand(3)
    for step in range(2, 14):
        train_step(batch_of(step))
    model.eval()
    model.zero_grad()
    assert optimizer.param_groups[0]["lr"] < 1e-2
    for _ in range(2):
        taken.restore()
        assert weights_hash(model) == want
        assert model.training
        assert torch.equal(torch.rand(3), draw)
        assert optimizer.param_groups[0]["lr"] == 1e-2
        now = [parameter.grad for parameter in model.parameters()]
        assert all(a is not None and torch.equal(a, b) for a, b in zip(now, grads, strict=True))
    before.restore()
    assert len(optimizer.state) == 0
    taken.restore()
    train_step(batch_of(2))
    model_2, optimizer_2, scheduler_2 = make_parts()
    again = make_step(model_2, optimizer_2, scheduler_2)
    again(batch_of(1))
    torch.rand(0)
    again(batch_of(2))
    assert weights_hash(model) == weights_hash(model_2)
