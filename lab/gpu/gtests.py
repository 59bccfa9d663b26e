"""The parts that run the test programs for a device, also under compute-sanitizer. Each case counts as soon as it has ended,
so that nothing is lost when the program crashes, hangs or is cut short."""

import pathlib
import re
import shutil

from . import frame

PROGRAMS = {"kernels": "kernels_on_device_test", "engine": "engine_on_device_test"}
SILENCE = 60  # seconds without a word: the case hangs
SANITIZED_SILENCE = 300
TEXT_MAX = 2000
ENDED = re.compile(r"\[ +(OK|FAILED|SKIPPED) +\] ([^ ,]+).*\(\d+ ms\)$")
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
REPORT = re.compile(r"^=+ +(?:(?:Error|Warning): Race|Invalid )", re.MULTILINE)
# Cases with so much data that they would take the time of all others under compute-sanitizer.
HEAVY = ("EveryBf16Value", "CountsGoBeyondSixteenBits", "TalliesOfEveryFormatAndRule")
SLOW = "LearnAsTheCpuDoes"  # trains on the CPU as well: last


def cases_of(setting, program, budget):
    """All of a program, in its order."""
    _, out = frame.run(setting, [setting.program(program), "--gtest_list_tests"], budget)
    cases, suite = [], ""
    for line in out.splitlines():
        word = line.split("#")[0].rstrip()
        if word.startswith("  "):
            cases.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    return cases


class Reading:
    """What a test program prints, taken line by line into `found`."""

    def __init__(self, setting, found):
        self.setting, self.found = setting, found
        self.case, self.lines, self.said = None, [], []

    def take(self, line):
        self.said = self.said[-50:] + [line]
        begins = re.match(r"\[ RUN +\] (\S+)", line)
        ends = ENDED.match(line)
        if begins:
            self.case, self.lines = begins[1], []
            self.found["running"] = self.case
        elif ends:
            self.end(ends[1])
        elif line.startswith("=========") and "sanitizer" in self.found:
            self.found["sanitizer"] = self.found["sanitizer"][:200] + [line]
        elif self.case:
            self.lines.append(line)

    def end(self, how, text=None):
        if how == "FAILED":
            text = text or "\n".join(self.lines)
            self.found["failures"].append({"case": self.case, "text": text[:TEXT_MAX]})
        else:
            self.found["passed_cases" if how == "OK" else "skipped_cases"].append(self.case)
        self.case = None
        self.found["running"] = None
        self.setting.keep()


def all_done(found):
    return {*found["passed_cases"], *found["skipped_cases"], *(failure["case"] for failure in found["failures"])}


def run_cases(setting, budget, found, program, cases, prefix=(), silence=SILENCE):
    """Those of `cases` that have not ended. After a case that ends the program the rest go on in a new one."""
    for key in ("passed_cases", "skipped_cases", "failures"):
        found.setdefault(key, [])
    found.setdefault("cases", len(cases))
    found["running"] = None
    while True:
        left = [case for case in cases if case not in all_done(found)]
        if not left:
            return
        reading = Reading(setting, found)
        command = [*prefix, setting.program(program), "--gtest_color=no", "--gtest_filter=" + ":".join(left)]
        status = frame.follow(setting, command, budget, reading.take, silence)
        said = "\n".join(reading.said)
        if status == frame.NO_DEVICE:
            raise frame.Skipped(frame.last_lines(said, 1))
        if reading.case:
            how = f"said nothing for {silence} s" if status is None else f"ended the program with status {status}"
            reading.end("FAILED", f"{how}: {said}")
        elif len(left) == len([case for case in cases if case not in all_done(found)]):
            raise frame.Failed(f"{program} ended with status {status} and ran no case: {frame.last_lines(said, 8)}")


def judge(found):
    if not found["passed_cases"] and not found["failures"]:
        raise frame.Failed("no case was run")
    found["passed"] = not found["failures"]


def whole(setting, budget, found, part):
    program = PROGRAMS[part]
    cases = found.get("only") or cases_of(setting, program, budget)
    found["cases"] = len(cases)
    for slow in (False, True):
        run_cases(setting, budget, found, program, [case for case in cases if (SLOW in case) is slow])
    judge(found)


def kernels(setting, budget, found):
    """Our kernels against the CPU's, on the device."""
    whole(setting, budget, found, "kernels")


def engine(setting, budget, found):
    """Runs of the engine: the same bits again, also from a checkpoint and over changes of the plan; the CPU's losses."""
    whole(setting, budget, found, "engine")


def alone(setting, budget, found, part, cases):
    """Each of the cases in a process of its own: an error of the device stays until its process ends."""
    kept = {"passed_cases": [], "skipped_cases": [], "failures": []}
    found.update(kept)
    for at in range(len(cases)):
        run_cases(setting, budget, found, PROGRAMS[part], cases[at:at + 1])
    judge(found)


# ---- compute-sanitizer ----

def sanitizer(setting):
    path = setting.environment.get("PATH", "")
    found = shutil.which("compute-sanitizer", path=path) or "/usr/local/cuda/bin/compute-sanitizer"
    if not pathlib.Path(found).is_file():
        raise frame.Skipped("compute-sanitizer is neither in PATH nor in /usr/local/cuda/bin")
    return found


def sanitized(setting, budget, found, tool, program, cases):
    """Cases under a tool of compute-sanitizer, and what it says."""
    # A library may ask for what a driver does not have: errors of its calls are not reported.
    more = ["--report-api-errors", "no"] if tool == "memcheck" else []
    prefix = [sanitizer(setting), "--tool", tool, *more, "--error-exitcode", "1"]
    found.setdefault("sanitizer", [])
    failure = None
    try:
        run_cases(setting, budget, found, program, cases, prefix, SANITIZED_SILENCE)
    except frame.Failed as error:
        failure = error
    words = "\n".join(found["sanitizer"])
    if "not supported" in words.lower():
        raise frame.Skipped(frame.last_lines(words, 3))
    if failure:
        raise failure
    judge(found)
    counts = [int(hit[0] or hit[1]) for hit in SUMMARY.findall(words)]
    if not counts:
        raise frame.Failed("compute-sanitizer gave no summary: " + frame.last_lines(words, 5))
    found["hazards"] = max(sum(counts), len(REPORT.findall(words)))  # one that was cut short gave no summary
    found["passed"] = found["passed"] and found["hazards"] == 0


def light_cases(setting, budget):
    sanitizer(setting)
    cases = cases_of(setting, PROGRAMS["kernels"], budget)
    return [case for case in cases if not any(words in case for words in HEAVY)]


def racecheck(setting, budget, found):
    """Our kernels under compute-sanitizer: threads of a block that race in shared memory."""
    sanitized(setting, budget, found, "racecheck", PROGRAMS["kernels"], light_cases(setting, budget))


def memcheck(setting, budget, found):
    """Our kernels under compute-sanitizer: accesses outside of their memory."""
    sanitized(setting, budget, found, "memcheck", PROGRAMS["kernels"], light_cases(setting, budget))
