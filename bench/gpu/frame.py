"""What every part of scripts/gpu-check needs: where it runs, commands with an end, and results as JSON files."""

import datetime
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NO_DEVICE = 3  # what our programs end with where there is no GPU


class Skipped(Exception):
    """There is nothing here that the part could run on; the text says what."""


class Failed(Exception):
    """A command of the part ended badly; the text says how."""


class Setting:
    """Where and how the parts run. `smoke`: tiny sizes on the CPU, to see that everything works."""

    def __init__(self, binaries, out, work, smoke, given):
        self.binaries = pathlib.Path(binaries).resolve()
        self.out = pathlib.Path(out).resolve()
        self.work = pathlib.Path(work).resolve()
        self.smoke = smoke
        self.given = given  # the command line's options
        self.device = "cpu" if smoke else "cuda"
        self.threads = min(os.cpu_count() or 1, 2 if smoke else 16)
        self.environment = environment(given.python)
        self.stamp = datetime.datetime.now(datetime.timezone.utc)
        self._facts = None

    def program(self, name):
        """In bin/ of a build or a bundle, or in tests/ of a build."""
        for folder in (self.binaries, self.binaries.parent / "tests"):
            if (folder / name).is_file():
                return str(folder / name)
        raise Skipped(f"{name} is not in {self.binaries}: not built, or not in the bundle")

    def facts(self):
        if self._facts is None:
            self._facts = facts(self)
        return self._facts


def environment(python):
    """Threads that wait for each other sleep; CUDA's libraries are found where pip put them."""
    found = dict(os.environ)
    found.setdefault("OMP_WAIT_POLICY", "passive")
    if "GNOMON_CUDA_LIBRARIES" not in found:
        folder = quiet([python, "-c", "import nvidia; print(list(nvidia.__path__)[0])"])
        if folder:
            found["GNOMON_CUDA_LIBRARIES"] = folder
    return found


def quiet(command, **more):
    """What a command prints, or nothing where it cannot run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, **more)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class Budget:
    """The seconds that a part has."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


def end_group(process, sign):
    try:
        os.killpg(process.pid, sign)
    except ProcessLookupError:
        pass


def run(setting, command, budget, cwd=None, statuses=(0,)):
    """Runs to its end or to the part's, and returns (status, stdout). Its process group is ended with it."""
    if budget.left() <= 0:
        raise Failed("the part's time was used up before " + shown(command))
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env=setting.environment, cwd=cwd, start_new_session=True)
    try:
        out, errors = process.communicate(timeout=max(1.0, budget.left()))
    except subprocess.TimeoutExpired:
        end_group(process, signal.SIGTERM)
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            end_group(process, signal.SIGKILL)
            process.communicate()
        raise Failed("ended at the part's time limit: " + shown(command)) from None
    if process.returncode == NO_DEVICE and NO_DEVICE not in statuses:
        raise Skipped(last_lines(errors or out, 1))
    if process.returncode not in statuses:
        raise Failed(f"{shown(command)} ended with status {process.returncode}: {last_lines(errors or out, 12)}")
    return process.returncode, out


def run_json(setting, command, budget, **more):
    """The JSON object that a command prints last."""
    _, out = run(setting, command, budget, **more)
    at = out.find("{")
    if at < 0:
        raise Failed(f"{shown(command)} printed no JSON: {last_lines(out, 3)}")
    return json.loads(out[at:])


def shown(command):
    words = " ".join(str(word) for word in command)
    return words if len(words) < 300 else words[:300] + " ..."


def last_lines(text, count):
    return "\n".join(text.strip().splitlines()[-count:]) or "it said nothing"


def gpu_facts():
    """Of the first GPU, as its driver tells."""
    keys = ["name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit",
            "compute_cap"]
    said = quiet(["nvidia-smi", "--query-gpu=" + ",".join(keys), "--format=csv,noheader"])
    if not said:
        return None
    return dict(zip(keys, (value.strip() for value in said.splitlines()[0].split(","))))


def processor():
    try:
        found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1) if found else platform.machine()


def commit_of(setting):
    bundle = setting.binaries.parent / "BUNDLE.json"
    if bundle.is_file():
        return json.loads(bundle.read_text())["revision"]
    said = quiet([setting.program("gnomon"), "--version"])
    found = re.search(r"\(([0-9a-f]+(?:-dirty)?)", said)
    return found.group(1) if found else "unknown"


PYTHON_VERSIONS = """
import json
try:
    import torch
    print(json.dumps({"torch": torch.__version__, "torch_cuda": torch.version.cuda,
                      "cudnn_of_torch": torch.backends.cudnn.version(), "gpu": torch.cuda.is_available()}))
except ImportError:
    print("{}")
"""


def device_says(setting):
    """What our own programs call the device, and the libraries they use on it."""
    said = quiet([setting.program("gnomon"), "bench", "gemm", "--device", setting.device, "--size", "64x64x64",
                  "--rounds", "1", "--seconds", "0", "--recipe", "current", "--json"], env=setting.environment)
    found = json.loads(said) if said else {}
    return found.get("machine"), found.get("libraries")


def facts(setting):
    gpu = gpu_facts()
    device, libraries = device_says(setting)
    if gpu is None and device and not setting.smoke:  # nvidia-smi is not everywhere
        gpu = {"name": device.split(" (")[0], "driver_version": None}
    said = quiet([setting.given.python, "-c", PYTHON_VERSIONS]) or "{}"
    return {
        "gpu": gpu, "device": device, "processor": processor(), "cores": os.cpu_count(), "host_kernel": platform.release(),
        "versions": {"driver": gpu["driver_version"] if gpu else None, "python": platform.python_version(),
                     "libraries": libraries, "gnomon": quiet([setting.program("gnomon"), "--version"]), **json.loads(said)},
        "commit": commit_of(setting),
    }


def machine_name(found):
    name = found["gpu"]["name"] if found["gpu"] else "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-").removeprefix("nvidia-")


def result_path(setting, part, ending="json"):
    day = setting.stamp.strftime("%Y-%m-%d")
    return setting.out / f"{day}-{machine_name(setting.facts())}-{part}.{ending}"


def write_result(setting, part, result):
    setting.out.mkdir(parents=True, exist_ok=True)
    path = result_path(setting, part)
    whole = {"part": part, "smoke": setting.smoke, "date": setting.stamp.isoformat(timespec="seconds"),
             **setting.facts(), **result}
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(whole, indent=1) + "\n")
    temporary.rename(path)
    return path


def say(text):
    print(text, file=sys.stderr, flush=True)
