"""Trains one run with the project's own programs and keeps what its ledger says, in one file."""

import gzip
import json
import os
import re
import shutil
import sqlite3
import subprocess
import threading
import time

from conditions import trainer_config

# No windows: nothing is verified and nothing steered.
POLICY = 'mode = "observe"\n\n[window]\nevery = 100000000\nsteps = 100000000\n'

TENSOR_NUMBERS = (
    "amax",
    "std",
    "kurtosis",
    "token_kurtosis_mean",
    "token_kurtosis_max",
    "dynamic_range",
    "nans",
    "infinities",
)
ROUNDING_NUMBERS = (
    "underflow",
    "saturation",
    "subnormal",
    "top_code",
    "relative_error",
    "sqnr_db",
    "scale_error",
)
# Of the GEMMs that read a tensor, the first: with one scale for the tensor both round it alike.
GEMM_OF = {"input": "fprop", "weight": "fprop", "gradient": "dgrad"}


class RunFailed(Exception):
    pass


def record_path(out, condition, seed):
    return os.path.join(out, "runs", f"{condition.name}-s{seed}.json.gz")


def number_of(value):
    return float(value) if isinstance(value, str) else value


def series_of(row):
    """Names and values that a ledger's statistics row gives: site|tensor|rounding|number."""
    rounding = ""
    names = TENSOR_NUMBERS
    if row["gemm"]:
        if row["gemm"] != GEMM_OF[row["tensor"]]:
            return
        rounding = "in use" if row["in_use"] else row["recipe"]
        names = ROUNDING_NUMBERS
    site = row["site"].removeprefix("model.")
    for name in names:
        if row.get(name) is not None:
            yield f"{site}|{row['tensor']}|{rounding}|{name}", number_of(row[name])


def read_ledger(path):
    ledger = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        state, final_loss, seconds = ledger.execute(
            "SELECT state, final_loss, train_seconds FROM runs"
        ).fetchone()
        if state != "completed":
            raise RunFailed(f"the ledger {path} has a run that is {state!r}, not completed")
        steps = ledger.execute("SELECT step, loss, grad_norm FROM steps ORDER BY step").fetchall()
        looks = [
            step for (step,) in ledger.execute("SELECT step FROM statistics_steps ORDER BY step")
        ]
        place = {step: index for index, step in enumerate(looks)}
        series = {}
        for step, body in ledger.execute("SELECT step, body FROM statistics"):
            for name, value in series_of(json.loads(body)):
                series.setdefault(name, [None] * len(looks))[place[step]] = value
    finally:
        ledger.close()
    numbers = [step for step, _, _ in steps]
    if numbers != list(range(1, len(numbers) + 1)):
        raise RunFailed(f"the ledger {path} lacks steps")
    return {
        "final_loss": final_loss,  # None: NaN
        "train_seconds": seconds,
        "loss": [loss for _, loss, _ in steps],
        "grad_norm": [norm for _, _, norm in steps],
        "statistics_steps": looks,
        "statistics": series,
    }


def without_place(config):
    return [line for line in config.splitlines() if not line.startswith("dir = ")]


def is_done(out, condition, seed, steps):
    """Whether the run's record is there. RunFailed when it is of another setup."""
    path = record_path(out, condition, seed)
    if not os.path.exists(path):
        return False
    with gzip.open(path, "rt") as file:
        record = json.load(file)
    wanted = without_place(trainer_config(condition, seed, steps, ""))
    if without_place(record["config"]) != wanted or record["plan"] != condition.plan:
        raise RunFailed(f"{path} is of another setup (other steps?): move it away or choose --out")
    return True


class Run:
    """One run in a folder of its own, with a controller of its own that only records."""

    def __init__(self, condition, seed, options, dataset):
        self.condition = condition
        self.seed = seed
        self.options = options
        self.dataset = dataset
        self.folder = os.path.join(options.out, "work", f"{condition.name}-s{seed}")
        self.processes = []

    def name(self):
        return f"{self.condition.name} seed {self.seed}"

    def steps_done(self):
        try:
            with open(self.log(), "rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - 4096))
                found = re.findall(rb"train (\d+)/", log.read())
        except FileNotFoundError:
            return 0
        return int(found[-1]) if found else 0

    def execute(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        with open(self.path("plan.toml"), "w") as file:
            file.write(self.condition.plan)
        config = trainer_config(self.condition, self.seed, self.options.steps, self.dataset)
        with open(self.path("run.toml"), "w") as file:
            file.write(config)
        with open(self.path("policy.toml"), "w") as file:
            file.write(POLICY)
        ledger = self.path("ledger.sqlite")
        daemon = self.start(
            "gnomond",
            f"--ledger {ledger} --listen 127.0.0.1:0 --port-file {self.path('port')} "
            f"--policy {self.path('policy.toml')}",
        )
        try:
            controller = f"http://127.0.0.1:{self.wait_for_port(daemon)}"
            status = self.start(
                "gnomon-trainer",
                f"--config {self.path('run.toml')} --dir {self.path('run')} "
                f"--controller {controller}",
            ).wait()
        finally:
            daemon.terminate()
            daemon.wait()
        if status != 0:
            raise RunFailed(f"gnomon-trainer ended with status {status}: see {self.log()}")
        record = read_ledger(ledger)
        if len(record["loss"]) != self.options.steps:
            raise RunFailed(f"{len(record['loss'])} steps in {ledger}, not {self.options.steps}")
        record |= {
            "condition": self.condition.name,
            "seed": self.seed,
            "config": config,
            "plan": self.condition.plan,
            "program": self.options.program,
        }
        self.keep(record)
        shutil.rmtree(self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, program, arguments):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        command = ["nice", "-n", str(self.options.nice), os.path.join(self.options.bin, program)]
        with open(self.path(f"{program}.log"), "w") as log:
            process = subprocess.Popen(
                command + arguments.split(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def log(self):
        return self.path("gnomon-trainer.log")

    def stop(self):
        for process in list(self.processes):
            if process.poll() is None:
                process.terminate()

    def wait_for_port(self, daemon):
        end = time.monotonic() + 60
        while time.monotonic() < end and daemon.poll() is None:
            try:
                with open(self.path("port")) as file:
                    text = file.read().strip()
                if text:
                    return int(text)
            except FileNotFoundError:
                pass
            time.sleep(0.05)
        raise RunFailed(f"gnomond did not open a port: see {self.path('gnomond.log')}")

    def keep(self, record):
        path = record_path(self.options.out, self.condition, self.seed)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with gzip.open(path + ".part", "wt") as file:
            json.dump(record, file)
        os.replace(path + ".part", path)


class Queue:
    """Runs what is not there yet, some at a time, and says how far it is."""

    def __init__(self, runs, jobs, say):
        self.waiting = list(runs)
        self.total = len(self.waiting)
        self.work = sum(self.cost(run) for run in self.waiting)
        self.done_work = 0.0
        self.active = []
        self.failed = []
        self.lock = threading.Lock()
        self.jobs = jobs
        self.say = say
        self.stopping = False

    @staticmethod
    def cost(run):
        return run.condition.cost * run.options.steps

    def worker(self):
        while True:
            with self.lock:
                if not self.waiting:
                    return
                run = self.waiting.pop(0)
                self.active.append(run)
            try:
                run.execute()
            except (RunFailed, OSError, sqlite3.Error) as error:
                if not self.stopping:
                    self.failed.append(f"{run.name()}: {error}")
                    self.say(f"FAILED {self.failed[-1]}")
            with self.lock:
                self.active.remove(run)
                self.done_work += self.cost(run)

    def state(self, started):
        with self.lock:
            active = [(run, run.steps_done()) for run in self.active]
            waiting = len(self.waiting)
            done = self.done_work
        done += sum(run.condition.cost * steps for run, steps in active)
        finished = self.total - waiting - len(active)
        left = (
            "?" if done == 0 else minutes((time.monotonic() - started) * (self.work - done) / done)
        )
        current = ", ".join(f"{run.name()} {steps}/{run.options.steps}" for run, steps in active)
        return (
            f"{finished}/{self.total} runs  {100 * done / self.work:.0f}%  {left} left  {current}"
        )

    def run(self, every_seconds):
        started = time.monotonic()
        threads = [threading.Thread(target=self.worker, daemon=True) for _ in range(self.jobs)]
        for thread in threads:
            thread.start()
        told = started
        try:
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.2)
                if time.monotonic() - told >= every_seconds:
                    told = time.monotonic()
                    self.say(self.state(started))
        except KeyboardInterrupt:
            self.stop(threads)
            raise
        return self.failed

    def stop(self, threads):
        """Ends what is running; the next start trains it from its beginning."""
        with self.lock:
            self.stopping = True
            self.waiting.clear()
            active = list(self.active)
        for run in active:
            run.stop()
        for thread in threads:
            thread.join()


def minutes(seconds):
    return f"{int(seconds // 60)}m{int(seconds % 60):02d}s"
