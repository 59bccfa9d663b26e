#!/usr/bin/env python3
"""Builds what is to be tested and tests it."""
import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
EPILOG = """\
examples:
  scripts/test --quick             what a change is tried with: under five minutes from nothing on two cores, a minute after
  scripts/test                     everything that a commit must pass: under 15 minutes from nothing on two cores
  scripts/test --filter Drain      the cases, files and checks whose names match; builds only what these need
  scripts/test --filter storage/   all of a room
  scripts/test --with-python       also the adapters for PyTorch, which is installed once into build/
  scripts/test --nightly           also sanitizers, long histories, all demos, packages, Slurm: under an hour

docs/testing.md says what is in each. GTEST_* variables reach the test programs.
"""


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", action="store_true", help="the rooms without processes, and some cases with a real daemon")
    choice.add_argument("--nightly", action="store_true", help="everything there is; docs/nightly.md gets the result")
    choice.add_argument("--filter", metavar="REGEX", help="what matches 'PROGRAM FILE SUITE.CASE' or the name of a check")
    parser.add_argument("--with-python", action="store_true",
                        help="also what needs PyTorch, which is installed once into build/ (some 5.6 GB)")
    parser.add_argument("--preset", help="the build that is tested (default: release; cpu with --quick)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() + 2,
                        help="tests at a time (default: two more than there are cores, since many wait)")
    parser.add_argument("--no-install", action="store_true", help="do not install missing packages")
    return parser.parse_args()


def run(*command, **options):
    return subprocess.run([str(each) for each in command], cwd=ROOT, check=True, **options)


class Step:
    """Says what is being done, and how long it took."""
    taken = []

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        print(f"== {self.name}", flush=True)
        self.start = time.monotonic()

    def __exit__(self, *_):
        self.taken.append((self.name, time.monotonic() - self.start))


class Build:
    def __init__(self, preset):
        self.preset = preset
        self.folder = ROOT / "build" / preset

    def configure(self):
        # Where no GPU will run it, device code is compiled for one kind alone.
        definitions = []
        if self.preset != "cpu" and not shutil.which("nvidia-smi") and not (self.folder / "CMakeCache.txt").exists():
            definitions.append("-DCMAKE_CUDA_ARCHITECTURES=90a-real")
            print(f"no GPU here: {self.folder.relative_to(ROOT)} gets device code for Hopper alone. To build for others too, "
                  f"say cmake --preset {self.preset} -UCMAKE_CUDA_ARCHITECTURES")
        with Step(f"configure {self.preset}"):
            done = subprocess.run(["cmake", "--preset", self.preset, *definitions], cwd=ROOT, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                sys.exit(done.stdout)
        self.tests = [json.loads(line) for line in (self.folder / "tests.jsonl").read_text().splitlines()]

    def build(self, targets):
        with Step(f"build {self.preset}"):
            quiet = [] if sys.stdout.isatty() else ["--quiet"]
            run("cmake", "--build", self.folder, "--target", *sorted(targets), "--", *quiet)


CASE = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
PATTERNS = {"TEST": ["{0}.{1}"], "TEST_F": ["{0}.{1}"], "TEST_P": ["{0}.{1}/*", "*/{0}.{1}/*"],
            "TYPED_TEST": ["{0}/*.{1}"], "TYPED_TEST_P": ["*/{0}/*.{1}"]}


def matching_cases(program, expression):
    """GoogleTest's patterns of the program's cases that match; the sources have their names, so nothing is built for it."""
    found = []
    for source in program["sources"]:
        path = pathlib.Path(source)
        if not path.is_absolute():
            path = ROOT / "tests" / source
        if not path.is_relative_to(ROOT):
            continue
        for kind, suite, case in CASE.findall(path.read_text()):
            if expression.search(f"{program['name']} {path.relative_to(ROOT)} {suite}.{case}"):
                found += [pattern.format(suite, case) for pattern in PATTERNS[kind]]
    return found


def filter_of(programs, quick):
    """One filter of GoogleTest's for all programs, whose suites have different names."""
    chosen, left_out = [], []
    for program in programs:
        left_out += [program["nightly"]] if program["nightly"] else []
        positive, _, negative = (program["quick"] if quick else "").partition("-")
        left_out += [negative] if negative else []
        if quick:
            chosen += [positive] if positive else matching_cases(program, re.compile(""))
    return ":".join(chosen) + ("-" + ":".join(left_out) if left_out else "")


def select(tests, asked):
    """The tests, and GoogleTest's filter for their programs."""
    if asked.filter:
        try:
            expression = re.compile(asked.filter)
        except re.error as error:
            sys.exit(f"scripts/test: --filter {asked.filter}: {error}")
        chosen, cases = [], []
        for test in tests:
            found = matching_cases(test, expression) if test["kind"] == "program" else []
            cases += found
            if found or (test["kind"] == "check" and expression.search(test["name"])):
                chosen.append(test)
        if not chosen:
            sys.exit(f"scripts/test: --filter {asked.filter}: no case, file or check matches")
        return chosen, ":".join(cases)
    if asked.nightly:
        return tests, ""
    def is_wanted(test):
        if asked.with_python and "python" in test["labels"]:
            return True
        return "quick" in test["labels"] if asked.quick else "nightly" not in test["labels"]

    wanted = [test for test in tests if is_wanted(test)]
    return wanted, filter_of([test for test in wanted if test["kind"] == "program"], asked.quick)


def entries(test):
    if test["kind"] == "check":
        return [test["name"]]
    return [f"{test['name']}.{shard}of{test['shards']}" for shard in range(1, test["shards"] + 1)]


def needs(test):
    return {test["name"]} if test["kind"] == "program" else set(test["needs"])


def ctest(build, names, jobs, environment):
    listed = "|".join(re.escape(name) for name in names)
    return subprocess.run(["ctest", "--test-dir", build.folder, "--output-on-failure", "--no-tests=error", f"-j{jobs}",
                           "--output-junit", build.folder / "checks.xml", "-R", f"^({listed})$"],
                          cwd=ROOT, env=os.environ | environment).returncode == 0


class Results:
    """What the programs' reports, and ctest's of the checks, say."""

    def __init__(self):
        self.passed, self.failed, self.skipped, self.seconds = 0, [], [], {}

    def read_program(self, name, report):
        if not report.exists():
            self.failed.append((name, None))
            return
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            if case.get("status") != "run":
                continue
            full = f"{case.get('classname')}.{case.get('name')}"
            self.seconds[f"{name} {full}"] = float(case.get("time"))
            if case.find("failure") is not None:
                self.failed.append((name, full))
            elif case.find("skipped") is not None:
                self.skipped.append((f"{name} {full}", (case.find("skipped").get("message") or "").split("\n")[-1]))
            else:
                self.passed += 1

    def read_checks(self, report, names):
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            name = case.get("name")
            if name not in names:
                continue
            self.seconds[name] = float(case.get("time"))
            if case.find("skipped") is not None:
                said = [line.strip() for line in (case.findtext("system-out") or "").splitlines() if line.strip()]
                self.skipped.append((name, said[-1] if said else "it did not say why"))
            elif case.get("status") == "run":
                self.passed += 1
            else:
                self.failed.append((None, name))

    def print(self):
        for name, why in self.skipped:
            print(f"skipped: {name}: {why}")
        slowest = sorted(self.seconds.items(), key=lambda each: -each[1])[:5]
        print("slowest: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest))
        print(f"{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped")


def run_tests(build, chosen, pattern, jobs):
    reports = build.folder / "test-results"
    for report in reports.glob("*.xml"):
        report.unlink()
    with Step(f"test {build.preset}"):
        names = [name for test in chosen for name in entries(test)]
        ctest(build, names, jobs, {"GTEST_FILTER": pattern} if pattern else {})
    results = Results()
    results.read_checks(build.folder / "checks.xml", {test["name"] for test in chosen if test["kind"] == "check"})
    for test in chosen:
        if test["kind"] == "program":
            for name in entries(test):
                results.read_program(test["name"], reports / f"{name}.xml")
    results.print()
    repeat_failed(build, results.failed)
    return results


def repeat_failed(build, failed):
    """Last in the log, where a reader looks. Passing now does not mend it: it says "flaky"."""
    for program, name in failed[:10]:
        print(f"== once more: {program or ''} {name or '(it ended before its report)'}", flush=True)
        if program and name:
            ctest(build, [f"{program}.1of1", f"{program}.1of2"], 1,
                  {"GTEST_FILTER": name, "GTEST_TOTAL_SHARDS": "1"})
        elif name:
            ctest(build, [name], 1, {})


def describe_machine():
    model = re.search(r"model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{os.cpu_count()} cores of {model.group(1) if model else platform.machine()}"


def run_at_night(preset, jobs):
    """Sanitizers; and the preset of --quick and scripts/demo, which no other test builds."""
    quick = preset == "cpu"
    build = Build(preset)
    build.configure()
    chosen = [test for test in build.tests if ("quick" if quick else "sanitized") in test["labels"]]
    demo = {"gnomond", "gnomon", "gnomon-lab", "gnomon-trainer", "gnomon-verifier"} if quick else set()
    build.build(demo.union(*(needs(test) for test in chosen)))
    return run_tests(build, chosen, filter_of([test for test in chosen if test["kind"] == "program"], quick), jobs)


def write_nightly(parts):
    """docs/nightly.md: what the last run of everything found, and where."""
    revision = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, capture_output=True).stdout
    lines = ["# The last nightly run", "",
             f"`scripts/test --nightly` wrote this page on {time.strftime('%-d %B %Y')}, on {describe_machine()},",
             f"at commit {revision.strip()}.", "",
             "| build | passed | failed | skipped |", "|---|---|---|---|"]
    for preset, results in parts:
        lines.append(f"| {preset} | {results.passed} | {len(results.failed)} | {len(results.skipped)} |")
    lines += ["", "| build | case | result |", "|---|---|---|"]
    for preset, results in parts:
        lines += [f"| {preset} | {' '.join(filter(None, each))} | failed |" for each in results.failed]
        names = {}
        for name, why in results.skipped:
            names.setdefault(why, []).append(name)
        lines += [f"| {preset} | {', '.join(names[why])} | skipped: {why} |" for why in names]
    (ROOT / "docs" / "nightly.md").write_text("\n".join(lines) + "\n")


def main():
    asked = arguments()
    # Tests share the cores with the processes they start: OpenMP threads must sleep while they wait, not spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if not asked.no_install:
        with Step("packages"):
            run("scripts/setup", *([] if asked.filter else ["--tests"]))  # a check that lacks a program is skipped
    build = Build(asked.preset or ("cpu" if asked.quick else "release"))
    build.configure()
    chosen, pattern = select(build.tests, asked)
    targets = set().union(*(needs(test) for test in chosen))
    if asked.nightly:
        targets.add("all")
    if targets:
        build.build(targets)
    results = run_tests(build, chosen, pattern, asked.jobs)
    parts = [(build.preset, results)]
    if asked.nightly:
        parts += [(preset, run_at_night(preset, asked.jobs)) for preset in ("cpu", "asan", "tsan")]
        write_nightly(parts)
    print(f"on {describe_machine()}: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in Step.taken))
    sys.exit(1 if any(results.failed for _, results in parts) else 0)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)
