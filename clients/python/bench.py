"""What the client costs, against a real gnomond that is started for it.

    GNOMON_BIN=build/release/bin python bench.py loop --seconds 60 --step 0.05
    GNOMON_BIN=build/release/bin python bench.py burst --steps 20000
    GNOMON_BIN=build/release/bin python bench.py memory --steps 1000000

loop: time that `run.step` and `log` take of the loop, median and 99th percentile, and the share of
a core that the client's threads and calls take. The loop sleeps between two steps, or with --busy
hashes 4 MiB again and again, so that caches are another's but the processor is awake.
burst: seconds until the controller has acknowledged all steps.
memory: the process's resident memory while steps go on.
"""

from __future__ import annotations

import argparse
import hashlib
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


def rest(pause: float, busy: bool, work: bytes) -> None:
    """The rest of a step: `pause` seconds."""
    if not busy:
        return time.sleep(pause)
    until = time.perf_counter() + pause
    while time.perf_counter() < until:
        hashlib.sha256(work).digest()


def loop(run: Run, seconds: float, pause: float, busy: bool) -> None:
    costs = []
    batch = bytes(64 << 10)
    work = bytes(4 << 20)
    before, begun = other_cpu(), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        costs.append(one_step(run, batch))
        rest(pause, busy, work)
    threads = (other_cpu() - before) / (time.perf_counter() - begun)
    in_loop = sum(costs) / 1e9 / (time.perf_counter() - begun)
    costs.sort()
    print(
        f"{len(costs)} steps of {pause * 1e3:.0f} ms{' busy' if busy else ''}: "
        f"median {costs[len(costs) // 2] / 1e3:.1f} us, "
        f"p99 {costs[len(costs) * 99 // 100] / 1e3:.1f} us, most {costs[-1] / 1e3:.1f} us; "
        f"of a core {100 * in_loop:.3f} % in the loop, {100 * threads:.3f} % in threads"
    )


def other_cpu() -> float:
    """Seconds that all threads but this one have run."""
    return time.process_time() - time.thread_time()


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
            while len(run._lead.outbox.queue) + run._lead.spool.count > 20_000:
                run._lead.outbox.flush()
                time.sleep(0.01)
        if i % max(steps // 20, 1) == 0:
            waiting = run._lead.spool.count
            print(f"{i} steps: {resident_kib()} KiB, {waiting} reports wait", flush=True)
    assert run._lead.outbox.steps_dropped == 0
    print(f"{steps} steps in {time.perf_counter() - begun:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("what", choices=["loop", "burst", "memory"])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--step", type=float, default=0.05, help="seconds")
    parser.add_argument("--busy", action="store_true", help="compute between two steps")
    parser.add_argument("--steps", type=int, default=20_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(pathlib.Path(folder))
        try:
            run = begin(daemon, folder)
            if arguments.what == "loop":
                loop(run, arguments.seconds, arguments.step, arguments.busy)
            elif arguments.what == "burst":
                burst(run, arguments.steps)
            else:
                memory(run, arguments.steps)
            run.finish()
        finally:
            daemon.kill()


if __name__ == "__main__":
    main()
