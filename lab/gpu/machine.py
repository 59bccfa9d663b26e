"""The machine, its driver and the versions of everything: what a result says beside its figures."""

import json
import os
import pathlib
import platform
import re

from . import frame


def gpu_facts():
    """Reads the first GPU's state from its driver."""
    keys = ["name", "driver_version", "memory.total", "clocks.max.sm", "clocks.max.memory", "power.limit",
            "compute_cap"]
    said = frame.quiet(["nvidia-smi", "--query-gpu=" + ",".join(keys), "--format=csv,noheader"])
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
    said = frame.quiet([setting.program("gnomon"), "--version"])
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
    said = frame.quiet([setting.program("gnomon"), "bench", "gemm", "--device", setting.device, "--size", "64x64x64",
                        "--rounds", "1", "--seconds", "0", "--recipe", "current", "--json"], env=setting.environment)
    found = json.loads(said) if said else {}
    return found.get("machine"), found.get("libraries")


def facts(setting):
    gpu = gpu_facts()
    device, libraries = device_says(setting)
    if gpu is None and device and not setting.smoke:  # nvidia-smi is not everywhere
        gpu = {"name": device.split(" (")[0], "driver_version": None}
    said = frame.quiet([setting.given.python, "-c", PYTHON_VERSIONS], seconds=60) or "{}"
    return {
        "gpu": gpu, "device": device, "processor": processor(), "cores": os.cpu_count(), "host_kernel": platform.release(),
        "versions": {"driver": gpu["driver_version"] if gpu else None, "python": platform.python_version(),
                     "libraries": libraries, "gnomon": frame.quiet([setting.program("gnomon"), "--version"]),
                     **json.loads(said)},
        "commit": commit_of(setting),
    }


def name(found):
    gpu = found["gpu"]["name"] if found["gpu"] else "cpu"
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-").removeprefix("nvidia-")


def missing(setting):
    """What our programs say where there is no GPU for them; nothing where there is one."""
    command = [setting.program("gnomon"), "bench", "gemm", "--device", "cuda", "--size", "64x64x64", "--rounds", "1",
               "--seconds", "0", "--recipe", "current"]
    try:
        frame.run(setting, command, frame.Budget(60))
    except frame.CutShort as error:
        return f"the device did not answer within a minute: {error}"
    except (frame.Skipped, frame.Failed) as error:
        return str(error) if isinstance(error, frame.Skipped) or "no CUDA" in str(error) else ""
    return ""
