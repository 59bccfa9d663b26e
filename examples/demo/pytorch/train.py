"""The demonstration's trainer: an ordinary loop of PyTorch under a gnomon controller.

python examples/demo/pytorch/train.py --url http://127.0.0.1:7717 --dir build/demo/pytorch/runs
"""

from __future__ import annotations

import argparse
import pathlib
import shutil

import job as demo

import gnomon
from gnomon.torch import (
    arm,
    attach,
    checkpoint,
    fingerprint,
    plan_sites,
    set_plan,
    set_step,
    weights_hash,
)

KEPT = 3  # newest checkpoints, besides those that the controller may still need


class Trainer:
    """The job, its checkpoints and its run."""

    def __init__(self, url: str, directory: pathlib.Path) -> None:
        self.job = demo.make_job()
        self.directory = directory
        self.saved: list[pathlib.Path] = []
        self.run = gnomon.init(
            project="demo",
            name="pytorch",
            url=url,
            sites=list(plan_sites(self.job.model)),
            plan=demo.PLAN,
            framework="pytorch",
            checkpoint_format=checkpoint.FORMAT,
            capabilities=gnomon.Capabilities(exact_replay=True),
            fingerprint=fingerprint("demo-pytorch"),
            faults=[fault.record() for fault in self.job.faults],
            parameters=sum(each.numel() for each in self.job.model.parameters()),
            total_steps=demo.STEPS,
            checkpoint_every=demo.CHECKPOINT_EVERY,
            tokens_per_step=demo.SEQUENCES * demo.TOKENS,
            seed=demo.SEED,
            directory=directory,
            on_plan=lambda plan: set_plan(self.job.model, plan),
            on_rollback=self.roll_back,
            on_checkpoint=self.save,
        )
        attach(self.run)

    def train(self) -> None:
        """Trains to the last step, on whichever attempt that is."""
        run, job = self.run, self.job
        self.save()
        while run.newest_step < demo.STEPS:
            with run.step() as s:
                set_step(job.model, s.step, job.faults)
                batch = job.batch(s.step)
                s.batch(batch)
                loss, norm = job.train_step(batch)
                s.log(loss=loss, grad_norm=norm, tokens=batch.numel())
                due = s.step % demo.CHECKPOINT_EVERY == 0
                if due:
                    s.log(weights_hash=weights_hash(job.model))
            if due:
                self.save()
            if s.step % 20 == 0:
                print(f"step {s.step}  loss {float(loss):.4f}  plan {run.plan.version}", flush=True)
        with arm(job.model, "bf16"):
            run.finish(final_loss=float(job.evaluate().mean()))

    def save(self) -> None:
        """Writes a checkpoint of the newest step and reports it. A repeated step has its own."""
        step = self.run.newest_step
        path = self.directory / "checkpoints" / f"step-{step:06}"
        attempt = 1
        while path.exists():
            attempt += 1
            path = path.with_name(f"step-{step:06}-{attempt}")
        size = checkpoint.save(
            path, step=step, model=self.job.model, plan=self.run.plan, state=self.job.state
        )
        self.run.checkpoint(path, weights_hash=weights_hash(self.job.model), size_bytes=size)
        self.saved.append(path)
        for old in self.saved[:-KEPT]:
            if not self.run.is_needed(old):
                shutil.rmtree(old)
                self.saved.remove(old)

    def roll_back(self, rollback: gnomon.Rollback) -> None:
        """Loads the checkpoint that the controller names; the plan is set already."""
        try:
            checkpoint.load(rollback.checkpoint_uri, model=self.job.model, state=self.job.state)
        except checkpoint.DamagedCheckpoint as error:
            raise gnomon.Rejected(str(error)) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--dir", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    shutil.rmtree(arguments.dir, ignore_errors=True)
    Trainer(arguments.url, arguments.dir).train()


if __name__ == "__main__":
    main()
