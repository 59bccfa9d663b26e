"""The parts that ask whether the device computes what it should."""

import json

from . import frame


def facts(setting, budget, found):
    """The machine, and that our programs see it."""
    found["programs"] = {}
    for name in ("gnomon", "gnomon-trainer", "gnomon-verifier", "gnomond"):
        _, out = frame.run(setting, [setting.program(name), "--version"], budget)
        found["programs"][name] = out.strip()
    size = ["--size", "64x64x64"] if setting.smoke else ["--size", "1024x1024x1024"]
    found["first_products"] = frame.run_json(
        setting, [setting.program("gnomon"), "bench", "gemm", "--device", setting.device, *size, "--rounds", "1",
                  "--seconds", "0", "--json"], budget)


def by_length(setting, budget, found, option, lengths, command):
    """Of ascending lengths, each of which has the cases of the one before. One that is cut short leaves what the shorter
    one found. Whether the longest ended with status 0."""
    for length in lengths:
        if found.get("length", 0) < length:
            status, out = frame.run(setting, [*command, option, length], budget, statuses=(0, 4))
            found.update(length=length, status=status, check=json.loads(out[out.index("{"):]))
    return found["status"] == 0


def attention(setting, budget, found):
    """cuDNN's attention and our own beside FP64, and their speed."""
    command = [setting.program("gnomon-gpu-check"), "attention", "--json", "--threads", setting.threads]
    lengths = (1024, 8192)
    if setting.smoke:
        command, lengths = [*command, "--repeats", "1"], (64,)
    found["passed"] = by_length(setting, budget, found, "--tokens-max", lengths, command)


def accumulation(setting, budget, found):
    """How the device adds FP8 products up."""
    command = [setting.program("gnomon-gpu-check"), "accumulation", "--json", "--threads", setting.threads]
    lengths = (1024, 8192)
    if setting.smoke:
        command += ["--pretend", "terms=32,bits=13,result=13,promote=128", "--sample", "4"]
        lengths = (256,)
    found["default_explains_the_device_best"] = by_length(setting, budget, found, "--k-max", lengths, command)
