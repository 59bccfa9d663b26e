"""The test programs for a device as scripts/gpu-check runs them: crashes, hangs, compute-sanitizer. All programs are invented."""

import json
import sys
import unittest
from unittest import mock

from support import InAFolder, part

from gpu import conduct, frame, gtests

# Has five cases; what each does stands in CASES. With a state like a device's: after "breaks" all others fail.
PROGRAM = f"""#!{sys.executable}
import json, os, sys, time
cases = json.loads(os.environ["CASES"])
if "--gtest_list_tests" in sys.argv:
    print("Running main() from x")
    print("Suite.")
    for name in cases:
        print(f"  {{name}}  # GetParam() = 1")
    sys.exit(0)
chosen = [word.split("=", 1)[1].split(":") for word in sys.argv if word.startswith("--gtest_filter=")][0]
with open(os.environ["ASKED"], "a") as log:
    log.write(" ".join(chosen) + "\\n")
if "no device" in cases.values():
    print("no CUDA device: none", flush=True)
    sys.exit(3)
broken, failed = False, []
for name, does in cases.items():
    full = "Suite." + name
    if full not in chosen:
        continue
    print(f"[ RUN      ] {{full}}", flush=True)
    if does == "crashes":
        os.abort()
    if does == "hangs":
        time.sleep(60)
    broken = broken or does == "breaks"
    if broken or does == "fails":
        print("file.cc:1: Failure")
        print(f"[  FAILED  ] {{full}}, where GetParam() = 1 (1 ms)", flush=True)
        failed.append(full)
    else:
        print(f"[       OK ] {{full}} (1 ms)", flush=True)
for full in failed:
    print(f"[  FAILED  ] {{full}}, where GetParam() = 1")
sys.exit(1 if failed else 0)
"""

SANITIZER = f"""#!{sys.executable}
import os, subprocess, sys
says = os.environ["SANITIZER_SAYS"]
print("========= COMPUTE-SANITIZER", flush=True)
if "not supported" in says:
    print("========= " + says)
    sys.exit(1)
status = subprocess.run(sys.argv[sys.argv.index("--error-exitcode") + 2:]).returncode
print("========= " + says)
sys.exit(status)
"""
CLEAN, RACY = "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", "RACECHECK SUMMARY: 2 hazards displayed (2 errors)"


class WithPrograms(InAFolder):
    def ready(self, says=None, before=None, part_name="kernels", **cases):
        """The result of a part, and what cases were asked for."""
        for name in gtests.PROGRAMS.values():
            self.program(name, PROGRAM)
        setting = self.setting()
        asked = self.folder / "asked"
        asked.write_text("")
        setting.environment.update(CASES=json.dumps(cases), ASKED=str(asked))
        if says:
            self.program("compute-sanitizer", SANITIZER, "tools")
            setting.environment.update(PATH=f"{self.folder}/tools:{setting.environment['PATH']}", SANITIZER_SAYS=says)
        kept = self.results(setting)
        run = getattr(gtests, part_name)
        conduct.conduct(setting, [part(part_name, run)], frame.Budget(540), kept, {part_name: before or {}})
        return kept.parts[part_name], asked.read_text().splitlines()

    def raced(self, says, **cases):
        return self.ready(says, part_name="racecheck", **cases)


class Programs(WithPrograms):
    def test_all_pass(self):
        result, asked = self.ready(a="", b="")
        self.assertEqual((result["status"], result["data"]["passed_cases"]), ("ok", ["Suite.a", "Suite.b"]))
        self.assertEqual(asked, ["Suite.a Suite.b"])

    def test_after_a_crash_the_rest_goes_on(self):
        result, asked = self.ready(a="", b="crashes", c="")
        self.assertEqual(result["status"], "failed")
        self.assertEqual(asked[:2], ["Suite.a Suite.b Suite.c", "Suite.c"])
        self.assertEqual([one["case"] for one in result["data"]["failures"]], ["Suite.b"])
        self.assertIn("ended the program with status -6", result["data"]["failures"][0]["text"])

    def test_after_a_hang_too(self):
        with mock.patch.object(gtests.run_cases, "__defaults__", ((), 1)):
            result, _ = self.ready(a="hangs", b="")
        self.assertEqual(result["data"]["passed_cases"], ["Suite.b"])
        self.assertIn("said nothing for 1 s", result["data"]["failures"][0]["text"])

    def test_an_error_that_stays_is_told_from_its_first_case(self):
        result, asked = self.ready(a="", b="breaks", c="", d="")
        self.assertEqual(len(result["data"]["failures"]), 3)
        self.assertEqual(asked[1:], ["Suite.b", "Suite.c", "Suite.d"])
        alone = result["tried"][0]
        self.assertEqual((alone["with"], alone["status"], alone["data"]["passed_cases"]),
                         ("each case alone", "failed", ["Suite.c", "Suite.d"]))
        self.assertEqual((result["tried"][1]["with"], result["tried"][1]["status"]), ("memcheck", "skipped"))

    def test_what_passed_before_is_not_run_again(self):
        before = {"passed_cases": ["Suite.a"], "skipped_cases": [], "failures": []}
        result, asked = self.ready(before=before, a="fails", b="")
        self.assertEqual((result["status"], asked), ("ok", ["Suite.b"]))

    def test_without_a_device_or_cases_it_says_so(self):
        result, _ = self.ready(a="no device")
        self.assertEqual((result["status"], result["reason"]), ("skipped", "no CUDA device: none"))
        result, _ = self.ready()
        self.assertEqual((result["status"], result["reason"]), ("failed", "no case was run"))


class Sanitizer(WithPrograms):
    def test_no_hazards(self):
        result, asked = self.raced(CLEAN, a="", EveryBf16Value="")
        self.assertEqual((result["status"], result["data"]["hazards"], asked), ("ok", 0, ["Suite.a"]))

    def test_hazards_fail_though_all_cases_pass(self):
        result, _ = self.raced(RACY, a="")
        self.assertEqual((result["status"], result["data"]["hazards"]), ("failed", 2))
        self.assertIn("barrier", result["next"])

    def test_a_hazard_before_the_end_counts_though_its_run_gave_no_summary(self):
        before = {"passed_cases": ["Suite.a"], "sanitizer": ["========= Error: Race reported between Write and Read"]}
        result, asked = self.ready(CLEAN, before=before, part_name="racecheck", a="", b="")
        self.assertEqual((result["status"], result["data"]["hazards"], asked), ("failed", 1, ["Suite.b"]))

    def test_a_device_that_is_not_supported_is_no_failure(self):
        result, _ = self.raced("Error: Device not supported.", a="")
        self.assertEqual(result["status"], "skipped")
        self.assertIn("Device not supported", result["reason"])

    def test_without_a_summary_nothing_is_shown(self):
        result, _ = self.raced("Internal error", a="")
        self.assertEqual(result["status"], "failed")
        self.assertIn("no summary", result["reason"])

    def test_memcheck_of_the_failing_cases_is_a_remedy(self):
        result, asked = self.ready("ERROR SUMMARY: 0 errors", a="", b="fails")
        memcheck = result["tried"][1]
        self.assertEqual((memcheck["with"], memcheck["status"]), ("memcheck", "ok"))
        self.assertEqual((result["status"], asked[-1]), ("failed", "Suite.b"))
        self.assertIn("no bad access", result["next"])


if __name__ == "__main__":
    unittest.main()
