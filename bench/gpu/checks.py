"""The parts that ask whether the device computes what it should."""

import json

from . import frame


def facts(setting, budget):
    """The machine, and that our programs see it."""
    found = {"programs": {}}
    for name in ("gnomon", "gnomon-trainer", "gnomon-verifier", "gnomond"):
        _, out = frame.run(setting, [setting.program(name), "--version"], budget)
        found["programs"][name] = out.strip()
    size = ["--size", "64x64x64"] if setting.smoke else ["--size", "1024x1024x1024"]
    found["first_products"] = frame.run_json(
        setting, [setting.program("gnomon"), "bench", "gemm", "--device", setting.device, *size, "--rounds", "1",
                  "--seconds", "0", "--json"], budget)
    return found


def of_gtest(setting, budget, program, more=()):
    """Cases of a test program, by how they ended."""
    setting.work.mkdir(parents=True, exist_ok=True)
    report = setting.work / f"{program}.json"
    report.unlink(missing_ok=True)
    status, _ = frame.run(setting, [setting.program(program), f"--gtest_output=json:{report}", *more], budget,
                          statuses=(0, 1))
    if not report.is_file():
        raise frame.Failed(f"{program} ended with status {status} and left no report")
    whole = json.loads(report.read_text())
    failures = []
    for suite in whole["testsuites"]:
        for case in suite["testsuite"]:
            for failure in case.get("failures", []):
                failures.append({"case": f"{suite['name']}.{case['name']}", "text": failure["failure"][:2000]})
    found = {"cases": whole["tests"], "failed": whole["failures"], "failures": failures[:50], "seconds": whole["time"]}
    return found


def judged(found):
    if found["cases"] == 0:
        raise frame.Failed("no case was run")
    found["passed"] = found["failed"] == 0
    return found


def kernels(setting, budget):
    """Our kernels against the CPU's, on the device."""
    return judged(of_gtest(setting, budget, "kernels_on_device_test"))


def engine(setting, budget):
    """Runs of the engine: the same bits again, over many steps, from a checkpoint, over changes of the plan; the CPU's
    losses."""
    return judged(of_gtest(setting, budget, "engine_on_device_test"))


def attention(setting, budget):
    """cuDNN's attention and our own beside FP64, and their speed."""
    command = [setting.program("gnomon-gpu-check"), "attention", "--json", "--threads", setting.threads]
    if setting.smoke:
        command += ["--tokens-max", "64", "--repeats", "1"]
    status, out = frame.run(setting, command, budget, statuses=(0, 4))
    return {"passed": status == 0, "check": json.loads(out[out.index("{"):])}


def accumulation(setting, budget):
    """How the device adds FP8 products up."""
    command = [setting.program("gnomon-gpu-check"), "accumulation", "--json", "--threads", setting.threads]
    if setting.smoke:
        command += ["--pretend", "terms=32,bits=13,result=13,promote=128", "--k-max", "256", "--sample", "4"]
    status, out = frame.run(setting, command, budget, statuses=(0, 4))
    return {"default_explains_the_device_best": status == 0, "comparison": json.loads(out[out.index("{"):])}
