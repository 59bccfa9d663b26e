"""How scripts/gpu-check spends its budget, goes on with what was cut short, and leaves no process behind."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time
import types
import unittest
from unittest import mock

from support import ROOT, InAFolder, part, script

from gpu import conduct, frame, peers, plan, remedies, results, speed


class Plan(unittest.TestCase):
    def test_the_limits_of_a_call_fit_into_the_budget(self):
        self.assertEqual(plan.CALLS, ["1", "2", "3", "later"])
        for call in plan.CALLS:
            total = sum(one.limit for one in plan.PARTS if one.call == call)
            self.assertLessEqual(total, 540, f"call {call}")
        self.assertLessEqual(plan.BUDGET, 540)

    def test_parts_are_named_once_and_can_start_within_their_limits(self):
        self.assertEqual(len(plan.NAMES), len(set(plan.NAMES)))
        for one in plan.PARTS:
            self.assertLess(one.least, one.limit, one.name)
            self.assertTrue(one.run.__doc__, one.name)
        self.assertLessEqual(set(remedies.TABLE), set(plan.NAMES))

    def test_parts_are_chosen_by_call_or_name(self):
        self.assertEqual([one.name for one in plan.chosen("2", [])], ["gemm", "bandwidth", "steps-small", "steps-3b"])
        self.assertEqual([one.name for one in plan.chosen(None, ["block", "facts"])], ["facts", "block"])
        self.assertEqual(plan.chosen(None, []), plan.PARTS)


class Conduct(InAFolder):
    def conduct(self, parts, seconds=540, before=None, setting=None):
        setting = setting or self.setting()
        kept = self.results(setting)
        statuses = conduct.conduct(setting, parts, frame.Budget(seconds), kept, before or {})
        return statuses, json.loads(kept.path.read_text())["parts"]

    def test_what_does_not_fit_is_not_started_and_said(self):
        limits = {}

        def seen(name):
            return lambda setting, budget, found: limits.update({name: budget.left()})

        parts = [part("a", seen("a"), limit=9), part("b", seen("b"), least=500), part("c", seen("c"), limit=100, least=20)]
        statuses, kept = self.conduct(parts, seconds=conduct.RESERVE + 30)
        self.assertEqual(statuses, {"a": "ok", "b": "not started", "c": "ok"})
        self.assertAlmostEqual(limits["a"], 9, delta=1)
        self.assertAlmostEqual(limits["c"], 30, delta=1)
        self.assertEqual(kept["b"]["status"], "not started")
        self.assertTrue(any(line.strip().startswith("b was not started: 30 s of the budget") for line in self.said), self.said)

    def test_an_exception_ends_one_part(self):
        def raises(error):
            def run(setting, budget, found):
                found["before"] = 1
                raise error
            return run

        errors = (KeyError("k"), frame.Failed("bad"), SystemExit(4), ZeroDivisionError(), OSError("no"),
                  AttributeError("a"), json.JSONDecodeError("j", "", 0))
        parts = [part(f"p{at}", raises(error)) for at, error in enumerate(errors)]
        parts.append(part("last", lambda setting, budget, found: found.update(passed=True)))
        statuses, kept = self.conduct(parts)
        self.assertEqual(list(statuses.values()), ["failed"] * len(errors) + ["ok"])
        self.assertIn("KeyError: 'k'", kept["p0"]["reason"])
        self.assertEqual(kept["p3"]["data"], {"before": 1})

    def test_the_file_has_what_a_part_has_found_while_it_runs(self):
        read = []

        def run(setting, budget, found):
            found["one"] = 1
            frame.run(setting, ["true"], budget)
            read.append(json.loads((setting.out / f"{setting.stem}.json").read_text())["parts"]["slow"])
            frame.run(setting, ["sleep", "60"], frame.Budget(0.3))

        statuses, kept = self.conduct([part("slow", run)])
        self.assertEqual((read[0]["status"], read[0]["data"]), ("running", {"one": 1}))
        self.assertEqual(statuses, {"slow": "cut short"})
        self.assertEqual(kept["slow"]["data"], {"one": 1})
        self.assertIn("sleep 60", kept["slow"]["reason"])

    def test_remedies_are_tried_until_one_helps(self):
        seen = []

        def run(setting, budget, found):
            choice = [name for name in ("GNOMON_GRAPHS", "GNOMON_ATTENTION") if name in setting.environment]
            seen.append(choice)
            found["as_expected"] = choice == ["GNOMON_ATTENTION"]

        _, kept = self.conduct([part("loop", run)])
        self.assertEqual(seen, [[], [], ["GNOMON_GRAPHS"], ["GNOMON_ATTENTION"]])
        self.assertEqual(kept["loop"]["status"], "failed")
        self.assertEqual([(one["with"], one["status"]) for one in kept["loop"]["tried"]],
                         [("nothing changed", "failed"), ("GNOMON_GRAPHS=off", "failed"), ("GNOMON_ATTENTION=own", "ok")])
        self.assertTrue(any("cuDNN's attention is at fault" in line for line in self.said))

    def test_no_remedy_is_started_when_the_limit_is_used_up(self):
        def run(setting, budget, found):
            found["as_expected"] = False
            budget.end -= 55

        _, kept = self.conduct([part("loop", run)])
        self.assertEqual({one["status"] for one in kept["loop"]["tried"]}, {"not started"})
        self.assertEqual(kept["loop"]["next"], remedies.OTHERWISE["loop"])

    def test_steps_that_were_measured_are_not_measured_again_by_a_remedy(self):
        asked = []

        def step(setting, budget, model, sequence, more=()):
            asked.append((model, sequence, "GNOMON_GRAPHS" in setting.environment))
            if "1.5b" in model and "GNOMON_GRAPHS" not in setting.environment:
                raise frame.Failed("illegal memory access")
            return {}

        with mock.patch.object(speed, "one_step", step):
            _, kept = self.conduct([part("steps-small", speed.steps_small)])
        rest = [("qwen2.5-1.5b", length, graphs_off) for graphs_off in (False, True) for length in (1024, 4096)]
        self.assertEqual(asked[4:], rest)
        self.assertEqual([(one["with"], one["status"]) for one in kept["steps-small"]["tried"]],
                         [("nothing changed", "failed"), ("GNOMON_GRAPHS=off", "ok")])

    def test_what_passes_the_second_time_blames_nothing(self):
        def run(setting, budget, found):
            found["as_expected"] = bool(setting.second)
            setting.second = True

        setting = self.setting()
        setting.second = False
        _, kept = self.conduct([part("loop", run)], setting=setting)
        self.assertEqual([one["with"] for one in kept["loop"]["tried"]], ["nothing changed"])
        self.assertIn("run again", kept["loop"]["next"])


class GoingOn(InAFolder):
    """Each part is cut short after its first command, and what is asked for in the next invocation is the rest."""

    def commands_of(self, run, setting, found, cut_after):
        asked = []

        def run_json(setting, command, budget, **more):
            if len(asked) == cut_after:
                raise frame.CutShort("the limit")
            asked.append(" ".join(str(word) for word in command))
            return {"tokens_per_second": 1.0, "bf16": {"tokens_per_second": 1.0}, "fp8": {"tokens_per_second": 1.0}}

        self.program("gnomon", "")
        kept = self.results(setting)
        with mock.patch.object(frame, "run_json", run_json):
            statuses = conduct.conduct(setting, [part("steps-small", run)], frame.Budget(540), kept, found)
        return asked, statuses["steps-small"]

    def test_what_is_measured_already_is_left_out(self):
        for run in (speed.steps_small, speed.gemm, speed.bandwidth, peers.torch):
            with self.subTest(run.__name__):
                setting = self.setting(versions={"torch": "2"}, commit=run.__name__)
                whole, status = self.commands_of(run, setting, {}, None)
                self.assertEqual(status, "ok")
                cut, status = self.commands_of(run, setting, {}, 1)
                self.assertEqual((cut, status), (whole[:1], "cut short"))
                before = results.to_go_on_from(setting, results.all_kept([setting.out], False))
                rest, status = self.commands_of(run, setting, before, None)
                self.assertEqual((rest, status), (whole[1:], "ok"))
                self.assertEqual(results.to_go_on_from(setting, results.all_kept([setting.out], False)), {})

    def kept_by_another(self, status, data, **facts):
        other = self.setting(**facts)
        kept = self.results(other)
        kept.parts = {"gemm": {"status": status, "date": results.now(), "data": data}}
        kept.write()
        return results.all_kept([other.out], False)

    def test_a_killed_invocation_is_gone_on_with(self):
        kept = self.kept_by_another("running", {"pieces": {"a": 1}})
        self.assertEqual(results.to_go_on_from(self.setting(), kept), {"gemm": {"pieces": {"a": 1}}})

    def test_other_programs_or_machines_begin_anew(self):
        for facts in ({"commit": "def"}, {"gpu": {"name": "NVIDIA H200"}}):
            kept = self.kept_by_another("cut short", {"pieces": {"a": 1}}, **facts)
            self.assertEqual(results.to_go_on_from(self.setting(), kept), {})

    def test_what_is_done_is_known(self):
        kept = self.kept_by_another("ok", {"pieces": {}})
        self.assertEqual(list(results.done_already(self.setting(), kept)), ["gemm"])
        self.assertEqual(results.done_already(self.setting(commit="def"), kept), {})

    def test_the_newest_result_that_says_something_counts(self):
        self.kept_by_another("ok", {"n": 1})
        self.kept_by_another("failed", {"n": 2})
        self.kept_by_another("skipped", {"n": 3})
        kept = self.kept_by_another("cut short", {})
        self.assertEqual(len(kept), 4)
        self.assertEqual(results.newest(kept)["gemm"]["data"], {"n": 2})


class Processes(InAFolder):
    STUBBORN = "trap '' TERM; sh -c \"trap '' TERM; echo $$; sleep 87.5\" & wait"

    def gone(self, pid, seconds=5):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if pathlib.Path(f"/proc/{pid}/stat").read_text().split(") ")[1].startswith("Z"):
                    return True
            except OSError:
                return True
            time.sleep(0.05)
        return False

    def test_a_group_that_does_not_want_to_end_is_ended_with_its_children(self):
        process = frame.start(self.setting(), ["sh", "-c", self.STUBBORN], stdout=subprocess.PIPE, text=True)
        child = int(process.stdout.readline())
        frame.end_all(grace=0.3)
        process.stdout.close()
        self.assertEqual(frame.GROUPS, {})
        self.assertTrue(self.gone(child) and self.gone(process.pid))

    def test_children_end_with_their_commands(self):
        _, out = frame.run(self.setting(), ["sh", "-c", "sleep 87.5 >/dev/null 2>&1 & echo $!"], frame.Budget(20))
        self.assertTrue(self.gone(int(out)))
        self.assertEqual(frame.GROUPS, {})

    def test_they_end_when_we_are_killed(self):
        code = ("import sys, time; sys.path.insert(0, sys.argv[1]); from gpu import frame\n"
                "print(frame.start(None, ['sleep', '87.5']).pid, flush=True); time.sleep(60)")
        parent = subprocess.Popen([sys.executable, "-c", code, str(ROOT / "lab")], stdout=subprocess.PIPE, text=True)
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        parent.stdout.close()
        self.assertTrue(self.gone(child))

    def test_a_signal_waits_until_a_process_is_known(self):
        acts = []
        real = subprocess.Popen

        def popen(*words, **more):
            process = real(*words, **more)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            self.assertEqual(acts, [])
            return process

        before = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)}
        frame.on_signals(lambda sign: acts.append((sign, len(frame.GROUPS))))
        try:
            with mock.patch.object(subprocess, "Popen", popen):
                frame.start(None, ["sleep", "87.5"])
            self.assertEqual(acts, [(signal.SIGTERM, 1)])
        finally:
            frame.end_all()
            frame.Signals.held = False
            for sign, act in before.items():
                signal.signal(sign, act)


class Files(InAFolder):
    def test_an_invocation_never_takes_the_name_of_another(self):
        stems = []
        for _ in range(3):
            kept = self.results(self.setting())
            kept.write()
            stems.append(kept.path.stem[len("2026-01-01-"):])
        self.assertEqual(stems, [f"h100-80gb-hbm3-call-1{ending}" for ending in ("", "-2", "-3")])

    def test_folders_of_the_machine_are_not_kept(self):
        setting = self.setting()
        kept = self.results(setting)
        kept.parts = {"a": {"status": "failed", "reason": f"{setting.binaries}/gnomon, {setting.work}/x, {sys.executable}"}}
        kept.write()
        self.assertEqual(json.loads(kept.path.read_text())["parts"]["a"]["reason"], "BIN/gnomon, WORK/x, PYTHON")

    def test_a_file_that_is_too_large_loses_the_largest_part(self):
        kept = self.results(self.setting())
        kept.parts = {"a": {"status": "ok", "data": "x" * 100}, "b": {"status": "ok", "data": "x" * 4000}}
        with mock.patch.object(results, "BYTES_MAX", 2000):
            kept.write()
        parts = json.loads(kept.path.read_text())["parts"]
        self.assertEqual((len(parts["a"]["data"]), parts["b"]["data"], parts["b"]["too_large"]), (100, None, True))

    def test_bundles_of_both_kinds_are_unpacked(self):
        program = self.program("gnomon", "programs")
        for mode in ("xz", "gz"):
            bundle = self.folder / f"b.tar.{mode}"
            with tarfile.open(bundle, f"w:{mode}") as archive:
                archive.add(program, arcname="gnomon/bin/gnomon")
            given = types.SimpleNamespace(bin=None, bundle=bundle)
            found = script().binaries(given, self.folder / mode)
            self.assertEqual((found / "gnomon").read_text(), "programs")


if __name__ == "__main__":
    unittest.main()
