"""What the client costs, against a real gnomond that is started for it.

    GNOMON_BIN=build/release/bin python bench.py loop --seconds 60 --step 0.05
    GNOMON_BIN=build/release/bin python bench.py burst --steps 20000
    GNOMON_BIN=build/release/bin python bench.py memory --steps 1000000

loop: time that `run.step` and `log` take of the loop, median and 99th percentile, and the share of
a core that the whole process takes beside a loop that sleeps. burst: seconds until the controller
has acknowledged all steps. memory: the process's resident memory while steps go on.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile
import time

import gnomon
from gnomon.run import Run, wait_until_registered

sys.path.insert(0, str(pathlib.Path(__file__).parent / "tests"))
from daemon import Daemon

SITES = [f"model.layers.{i}.mlp.up_proj" for i in range(4)]
PLAN = gnomon.PrecisionPlan.fp8()


def begin(daemon: Daemon, folder: str) -> Run:
    run = gnomon.init(
        project="bench",
        name="client",
        url=daemon.url,
        sites=SITES,
        plan=PLAN,
        directory=folder,
        total_steps=100_000_000,
    )
    assert wait_until_registered(run, 10)
    return run


def one_step(run: Run, batch: bytes) -> int:
    """Nanoseconds of the loop's own time that a step costs."""
    begun = time.perf_counter_ns()
    with run.step(batch=batch) as step:
        inside = time.perf_counter_ns()
        out = time.perf_counter_ns()
        step.log(loss=2.5, grad_norm=0.7, learning_rate=1e-3, tokens=8192)
    return time.perf_counter_ns() - begun - (out - inside)


def loop(run: Run, seconds: float, pause: float) -> None:
    costs = []
    batch = bytes(64 << 10)
    cpu, begun = time.process_time(), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        costs.append(one_step(run, batch))
        time.sleep(pause)
    cpu_share = (time.process_time() - cpu) / (time.perf_counter() - begun)
    cpu_idle, begun = time.process_time(), time.perf_counter()
    for _ in range(int(min(seconds, 10) / pause)):
        time.sleep(pause)
    idle_share = (time.process_time() - cpu_idle) / (time.perf_counter() - begun)
    costs.sort()
    print(
        f"{len(costs)} steps of {pause * 1e3:.0f} ms: median {costs[len(costs) // 2] / 1e3:.1f} "
        f"us, p99 {costs[len(costs) * 99 // 100] / 1e3:.1f} us, most {costs[-1] / 1e3:.1f} us; "
        f"{100 * cpu_share:.2f} % of a core ({100 * idle_share:.2f} % without steps)"
    )


def burst(run: Run, steps: int) -> None:
    begun = time.perf_counter()
    for _ in range(steps):
        one_step(run, b"tokens")
    put = time.perf_counter() - begun
    assert run._lead is not None
    run._lead.outbox.flush()
    while run._lead.spool.count:
        run._lead.spool.wake()
        time.sleep(0.005)
    seconds = time.perf_counter() - begun
    print(f"{steps} steps: {put:.3f} s in the loop, all acknowledged after {seconds:.3f} s")


def resident_kib() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0


def memory(run: Run, steps: int) -> None:
    assert run._lead is not None
    begun = time.perf_counter()
    for i in range(1, steps + 1):
        one_step(run, b"tokens")
        if i % 2000 == 0:
            while run._lead.spool.count > 20_000:
                time.sleep(0.01)
        if i % max(steps // 20, 1) == 0:
            waiting = run._lead.spool.count
            print(f"{i} steps: {resident_kib()} KiB, {waiting} reports wait", flush=True)
    print(f"{steps} steps in {time.perf_counter() - begun:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("what", choices=["loop", "burst", "memory"])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--step", type=float, default=0.05, help="seconds")
    parser.add_argument("--steps", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(pathlib.Path(folder))
        try:
            run = begin(daemon, folder)
            if arguments.what == "loop":
                loop(run, arguments.seconds, arguments.step)
            elif arguments.what == "burst":
                burst(run, arguments.steps)
            else:
                memory(run, arguments.steps)
            run.finish()
        finally:
            daemon.kill()


if __name__ == "__main__":
    main()
