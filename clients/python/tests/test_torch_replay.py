"""Checkpoints of the format `torch`, hashes of weights, and replays of windows."""

from __future__ import annotations

import pathlib
import random

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install 'gnomon-client[torch]'")

import torch
from torch_job import batch_of, make_job
from trainer import answers, offline, rollback, take_steps

import gnomon
from gnomon.batch import batch_hash
from gnomon.plan import PrecisionPlan
from gnomon.replay_process import ProcessReplayer
from gnomon.torch import Fault, Job, checkpoint, make_verifier, replay, weights_hash
from gnomon.torch.fingerprint import fingerprint
from gnomon.torch.replay import load_checkpoint, reordered, standard_error
from gnomon.verify import ReplayTask

FP8 = PrecisionPlan.fp8()
STEPS = 6


def train(job: Job, first: int, last: int) -> list[float]:
    from gnomon.torch import set_step

    losses = []
    for step in range(first, last + 1):
        set_step(job.model, step, job.faults)
        losses.append(float(job.train_step(job.batch(step))[0]))
    return losses


def save(job: Job, path: pathlib.Path, step: int) -> str:
    checkpoint.save(path, step=step, model=job.model, plan=FP8, state=job.state)
    return str(path)


def a_window(tmp_path: pathlib.Path, faults: tuple[Fault, ...] = ()) -> tuple[Job, ReplayTask]:
    """A run of STEPS steps behind its checkpoint, and the task of replaying them."""
    job = make_job(faults=faults)
    train(job, 1, 4)
    start = save(job, tmp_path / "step-4", 4)
    train(job, 5, 4 + STEPS)
    end = save(job, tmp_path / "end", 4 + STEPS)
    task = ReplayTask("run-1", 1, 1, 1, "same", start, 4, STEPS, end_checkpoint=end)
    task.evaluate_endpoints = True
    return job, task


def test_the_same_arm_gives_the_bits_of_the_run(tmp_path: pathlib.Path) -> None:
    run, task = a_window(tmp_path)
    want = weights_hash(run.model)
    result = replay(make_job(), task)
    assert [step.step for step in result.steps] == list(range(5, 5 + STEPS))
    assert result.steps[-1].weights_hash == want
    assert result.steps[0].batch_hash == batch_hash(batch_of(5))
    assert result.run_end_loss_bf16 == result.replay_end_loss_bf16
    assert result.gap_error == 0
    assert result.replay_seconds
    assert result.eval_seconds
    assert result.heldout_tokens


def test_the_bf16_arm_measures_a_fault_of_fp8_and_fakequant_shares_it(
    tmp_path: pathlib.Path,
) -> None:
    fault = Fault("layers.1.down_proj", 5, 0, "scale_shift", "input", log2_factor=8)
    _, task = a_window(tmp_path, (fault,))
    ends = {}
    for name in ("bf16", "fakequant", "same", "bf16-perturbed"):
        task.arm = name
        result = replay(make_job(faults=(fault,)), task)
        assert result.replay_end_loss_bf16 is not None
        ends[name] = result.replay_end_loss_bf16
        assert result.start_loss_plan is not None
    assert ends["same"] > ends["bf16"] + 0.003
    assert ends["fakequant"] > ends["bf16"] + 0.003
    assert ends["bf16-perturbed"] != ends["bf16"]
    assert abs(ends["bf16-perturbed"] - ends["bf16"]) < 0.1 * (ends["same"] - ends["bf16"])
    assert result.run_end_loss_bf16 == ends["same"]


def test_a_plan_rescues_and_a_nudge_moves(tmp_path: pathlib.Path) -> None:
    fault = Fault("layers.1.down_proj", 5, 0, "scale_shift", "input", log2_factor=8)
    _, task = a_window(tmp_path, (fault,))
    verifier = make_verifier(lambda: make_job(faults=(fault,)))
    task.arm, task.plan = "plan", FP8.with_bf16_sites(["layers.1.down_proj"])
    rescued = verifier(task).replay_end_loss_bf16
    task.arm, task.plan = "same", None
    broken = verifier(task).replay_end_loss_bf16
    assert rescued is not None
    assert broken is not None
    assert broken > rescued + 0.003
    task.perturb = 3
    assert verifier(task).replay_end_loss_bf16 not in (broken, rescued)
    assert "plan" in verifier.arms
    assert verifier.checkpoint_formats == ("torch",)
    assert not verifier.exact_replay
    assert make_verifier(make_job, exact_replay=True).exact_replay


def test_what_cannot_be_replayed_is_said(tmp_path: pathlib.Path) -> None:
    _, task = a_window(tmp_path)
    task.arm = "scores"
    with pytest.raises(gnomon.Unsupported, match="scores"):
        replay(make_job(), task)
    task.arm, task.start_step = "same", 3
    with pytest.raises(checkpoint.DamagedCheckpoint, match="of step 10, not 9"):
        replay(make_job(), task)


def test_a_replay_ends_where_its_lease_is_lost(tmp_path: pathlib.Path) -> None:
    _, task = a_window(tmp_path)
    done: list[int] = []

    def check() -> None:
        if len(done) == 2:
            raise gnomon.LeaseLost("409")

    task._progress, task._check = done.append, check
    with pytest.raises(gnomon.LeaseLost):
        replay(make_job(), task)
    assert done == [1, 2]


def test_a_loss_that_is_not_finite_ends_the_steps(tmp_path: pathlib.Path) -> None:
    _, task = a_window(tmp_path)
    job = make_job()
    real, job.train_step = job.train_step, lambda batch: (float("nan"), 1.0)
    result = replay(job, task)
    assert [step.step for step in result.steps] == [5]
    assert result.replay_end_loss_bf16 is None
    job.train_step = real


def test_an_evaluation_of_the_wrong_shape_is_an_error(tmp_path: pathlib.Path) -> None:
    _, task = a_window(tmp_path)
    job = make_job()
    job.evaluate = lambda: torch.tensor(1.0)
    with pytest.raises(ValueError, match=r"expected \[sequences\]"):
        replay(job, task)


def test_a_damaged_checkpoint_is_refused(tmp_path: pathlib.Path) -> None:
    job = make_job()
    path = pathlib.Path(save(job, tmp_path / "c", 0))
    assert checkpoint.read(path)["step"] == 0
    state = path / "state.pt"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    with pytest.raises(checkpoint.DamagedCheckpoint, match="not of the hash"):
        checkpoint.read(path)
    state.write_bytes(data[:-1])
    with pytest.raises(checkpoint.DamagedCheckpoint, match="bytes"):
        checkpoint.read(path)
    (path / "manifest.json").unlink()
    with pytest.raises(checkpoint.DamagedCheckpoint, match="manifest"):
        checkpoint.read(path)


def test_a_rollback_to_a_damaged_checkpoint_is_rejected(tmp_path: pathlib.Path) -> None:
    job = make_job()
    path = save(job, tmp_path / "c", 0)
    before = weights_hash(job.model)
    (tmp_path / "c" / "state.pt").write_bytes(b"cut")

    def load(to: gnomon.Rollback) -> None:
        checkpoint.load(to.checkpoint_uri, model=job.model, state=job.state)

    run = offline(tmp_path, rollback(1, 0, path), on_rollback=load)
    take_steps(run, 1)
    assert "not of" in next(it for it in answers(run) if '"state":"rejected"' in it)
    run._close(0)
    assert weights_hash(job.model) == before


def test_a_checkpoint_that_is_replaced_is_never_without_a_whole_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job()
    save(job, tmp_path / "c", 0)
    rename = pathlib.Path.rename

    def crashes(path: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
        if path.name == "c.partial":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(pathlib.Path, "rename", crashes)
    with pytest.raises(KeyboardInterrupt):
        save(job, tmp_path / "c", 4)
    assert checkpoint.read(tmp_path / "c.old")["step"] == 0
    assert checkpoint.read(tmp_path / "c.partial")["step"] == 4
    monkeypatch.undo()
    for step in (5, 6):
        save(job, tmp_path / "c", step)
        assert checkpoint.read(tmp_path / "c")["step"] == step
        assert [each.name for each in tmp_path.iterdir()] == ["c"]


def test_ranks_that_drew_different_numbers_do_so_behind_a_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draws(rank: int, seed: int) -> list[float]:
        """What a rank draws that was started with a seed of its own, and loads the checkpoint."""
        monkeypatch.setattr(checkpoint, "rank", lambda: rank)
        torch.manual_seed(seed)
        checkpoint.load(path, model=job.model)
        return [*torch.rand(2).tolist(), random.random()]

    job = make_job()
    torch.manual_seed(7)
    torch.rand(3)
    path = save(job, tmp_path / "c", 0)
    want = [*torch.rand(2).tolist(), random.random()]
    assert draws(0, 7) == draws(0, 1) == want, "rank 0 has saved its own"
    assert draws(1, 7) == want, "it was seeded as rank 0"
    others = [draws(1, 8), draws(2, 9)]
    assert others == [draws(1, 8), draws(2, 9)]
    values = [want, *others]
    assert len({each[0] for each in values}) == len({each[2] for each in values}) == 3


def test_gradients_of_a_replay_that_failed_do_not_enter_the_next(tmp_path: pathlib.Path) -> None:
    job = make_job()
    path = save(job, tmp_path / "c", 0)
    for parameter in job.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    load_checkpoint(job, path, 0)
    assert all(parameter.grad is None for parameter in job.model.parameters())


def test_numbers_of_numpy_in_a_state_can_be_read_again(tmp_path: pathlib.Path) -> None:
    numpy = pytest.importorskip("numpy")
    job = make_job()
    optimizer = job.state["optimizer"]
    optimizer.param_groups[0]["lr"] = numpy.float64(0.5)  # type: ignore[attr-defined]
    fresh = make_job()
    checkpoint.load(save(job, tmp_path / "c", 0), model=fresh.model, state=fresh.state)
    assert fresh.state["optimizer"].param_groups[0]["lr"] == 0.5  # type: ignore[attr-defined]


def test_a_checkpoint_restores_all_of_a_job(tmp_path: pathlib.Path) -> None:
    job = make_job()
    train(job, 1, 3)
    path = save(job, tmp_path / "c", 3)
    want = train(job, 4, 8)
    fresh = make_job()
    step, plan = checkpoint.load(path, model=fresh.model, state=fresh.state)
    assert (step, plan.to_toml()) == (3, FP8.to_toml())
    assert train(fresh, 4, 8) == want  # dropout too
    before = weights_hash(fresh.model)
    with pytest.raises(checkpoint.DamagedCheckpoint, match="no state of scaler"):
        checkpoint.load(path, model=fresh.model, state={"scaler": job.state["optimizer"]})
    assert weights_hash(fresh.model) == before


def test_the_hash_of_weights_sees_one_bit() -> None:
    job = make_job()
    first = weights_hash(job.model, fast=False)
    assert first == weights_hash(make_job().model, fast=False)
    assert first.startswith("b2:")
    parameter = next(job.model.parameters())
    with torch.no_grad():
        parameter.view(-1).view(torch.int32)[7] ^= 1
    assert weights_hash(job.model, fast=False) != first


def test_another_order_keeps_rows_together() -> None:
    batch = {"a": torch.arange(6), "b": (torch.arange(6) * 10,)}
    other = reordered(batch, 5)
    assert other["b"][0].tolist() == (other["a"] * 10).tolist()
    assert other["a"].tolist() != list(range(6))
    with pytest.raises(gnomon.Unsupported):
        reordered("text", 5)


def test_standard_error_and_fingerprint() -> None:
    assert standard_error(torch.tensor([1.0, 3.0])) == pytest.approx(1.0)
    assert standard_error(torch.tensor([1.0])) == 0
    mine = fingerprint("job 1")
    assert mine.backend in ("cpu", "cuda")
    assert torch.__version__ in mine.libraries
    assert mine.build == "job 1"


def test_a_job_that_cannot_be_made_is_said_when_the_verifier_starts(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_job.py").write_text(
        "from gnomon.torch import make_verifier\n\n"
        "def make_job():\n    raise FileNotFoundError('no tokens')\n\n"
        "verifier = make_verifier(make_job)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(gnomon.ConfigError, match="it raised FileNotFoundError: no tokens"):
        ProcessReplayer("broken_job:verifier", 60)
