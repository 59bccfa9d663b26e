"""What gnomon.torch costs and gains on a GPU (or, at tiny sizes, on a CPU): a JSON object a line.

    GNOMON_BIN=build/release/bin python bench_torch.py            # against a real gnomond
    python bench_torch.py --tiny --device cpu

linear: one step (forward, backward) of gated feed-forward layers under BF16 and FP8 plans, eager
and compiled, in turn. loop: whole steps with and without `run.step` and its report, in turn, and
the loop's own time. shadow: what a window of the shadow in the process costs, in steps.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import gnomon
from gnomon.run import Run, wait_until_registered
from gnomon.torch import Shadow, Snapshot, adopt, attach, kernel_of, set_plan, weights_hash

sys.path.insert(0, str(pathlib.Path(__file__).parent / "tests"))
from daemon import Daemon

BF16 = gnomon.PrecisionPlan.bf16()
PLANS = {
    "bf16": BF16,
    "current": gnomon.PrecisionPlan.fp8("current"),
    "rowwise": gnomon.PrecisionPlan.fp8("rowwise"),
}


class Block(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, ffn, False), nn.Linear(width, ffn, False)
        self.down = nn.Linear(ffn, width, False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        output: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return output


class Bench:
    """The model, its sizes and a clock that waits for the device."""

    def __init__(self, device: str, tiny: bool) -> None:
        self.device, self.rounds = device, 2 if tiny else 5
        self.layers, self.width, self.ffn = (2, 64, 128) if tiny else (2, 4096, 14336)
        self.tokens = 64 if tiny else 8192
        torch.manual_seed(0)
        blocks = [Block(self.width, self.ffn) for _ in range(self.layers)]
        self.model: nn.Module = nn.Sequential(*blocks).to(device)
        adopt(self.model, BF16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=not tiny)
        self.batch = torch.randn(self.tokens, self.width, device=device)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], Any]) -> float:
        self.wait()
        begun = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - begun

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            output: Tensor = model(batch)
        return output.float().square().mean(dim=1)

    def train_step(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, batch).mean()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach(), norm

    # ---- what is measured ----

    def linear(self) -> dict[str, Any]:
        flops = 3 * 2 * self.tokens * 3 * self.width * self.ffn * self.layers
        found: dict[str, Any] = {"flops": flops, "kernel": kernel_of(self.device)}
        for compiled in (False, True):
            torch.compiler.reset()
            model: Any = torch.compile(self.model) if compiled else self.model

            def work(model: Any = model) -> None:
                self.optimizer.zero_grad()
                torch.autograd.backward(self.loss(model, self.batch).mean())

            times: dict[str, list[float]] = {name: [] for name in PLANS}
            for turn in range(self.rounds + 2):
                for name, plan in PLANS.items():
                    set_plan(self.model, plan)
                    taken = self.seconds(work)
                    if turn > 1:  # the first ones compile
                        times[name].append(taken)
            medians = {name: statistics.median(each) for name, each in times.items()}
            found["compiled" if compiled else "eager"] = {
                name: {
                    "seconds": taken,
                    "tflops": flops / taken / 1e12,
                    "bf16_over_it": medians["bf16"] / taken,
                }
                for name, taken in medians.items()
            }
        return found

    def loop(self, run: Run) -> dict[str, Any]:
        """Rounds of steps with and without the client. The loop does not wait for the device."""
        set_plan(self.model, PLANS["current"])
        attach(run)
        steps = 3 if self.rounds == 2 else 40
        own: list[float] = []

        def without() -> None:
            for _ in range(steps):
                self.train_step(self.batch)

        def supervised() -> None:
            for _ in range(steps):
                begun = time.perf_counter()
                with run.step(batch=self.batch[:4]) as s:
                    inside = time.perf_counter()
                    loss, norm = self.train_step(self.batch)
                    behind = time.perf_counter()
                    s.log(loss=loss, grad_norm=norm, tokens=self.tokens)
                own.append(inside - begun + time.perf_counter() - behind)

        ratios = []
        without()
        for _ in range(3):
            alone = self.seconds(without)
            ratios.append(self.seconds(supervised) / alone)
        own.sort()
        return {
            "step_seconds": alone / steps,
            "supervised_over_alone": statistics.median(ratios),
            "client_us_median": own[len(own) // 2] * 1e6,
            "client_us_p99": own[len(own) * 99 // 100] * 1e6,
        }

    def shadow(self) -> dict[str, Any]:
        set_plan(self.model, PLANS["current"])
        weights = sum(each.numel() * each.element_size() for each in self.model.parameters())
        step = statistics.median(
            self.seconds(lambda: self.train_step(self.batch)) for _ in range(self.rounds)
        )
        found: dict[str, Any] = {"step_seconds": step, "weights_bytes": weights, "hash": {}}
        found["hash"][weights_hash(self.model).split(":")[0]] = weights / self.seconds(
            lambda: weights_hash(self.model)
        )
        for place in ("device", "host"):
            taken = self.seconds(
                lambda place=place: Snapshot(self.model, self.optimizer, place=place).close()
            )
            found[f"snapshot_{place}_seconds"] = taken
        shadow = Shadow(
            self.model,
            self.optimizer,
            train_step=self.train_step,
            evaluate=lambda: self.loss(self.model, self.batch[:512]).detach(),
            every=20,
            steps=10,
            place="device",
        )
        for _ in range(10):
            shadow.step(self.batch)
        found["window_of_10_steps_seconds"] = self.seconds(shadow.verify)
        found["window_in_steps"] = found["window_of_10_steps_seconds"] / step
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes that mean nothing")
    arguments = parser.parse_args()
    bench = Bench(arguments.device, arguments.tiny)
    name = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"

    def print_row(what: str, found: dict[str, Any]) -> None:
        print(json.dumps({"what": what, "device": name, "torch": torch.__version__, **found}))
        sys.stdout.flush()

    print_row("linear", bench.linear())
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(pathlib.Path(folder))
        try:
            with gnomon.init(
                project="bench",
                name="torch",
                url=daemon.url,
                sites=["0.up"],
                plan=PLANS["current"],
                directory=folder,
            ) as run:
                assert wait_until_registered(run, 10)
                print_row("loop", bench.loop(run))
        finally:
            daemon.kill()
    print_row("shadow", bench.shadow())


if __name__ == "__main__":
    main()
