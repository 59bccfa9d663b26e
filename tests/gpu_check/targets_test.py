"""How measured figures are read and held against the targets, on invented results."""

import types
import unittest
from unittest import mock

import support  # noqa: F401 (finds gpu)

from gpu import conduct, curves, frame, speed, targets


def verdict(results, words):
    rows = [row for row in targets.judged(results) if words in row[0]]
    assert len(rows) == 1, rows
    return rows[0][1], rows[0][3]


class Targets(unittest.TestCase):
    def test_nothing_measured(self):
        self.assertEqual({row[3] for row in targets.judged({})}, {"not measured"})
        self.assertEqual(verdict({"gemm": {"data": None}}, "casts excluded")[1], "not measured")

    def test_the_large_square_counts_and_no_other(self):
        def product(site, ratio, with_cast):
            return {"site": site, "fp8": {"current": {"over_bf16": ratio, "with_cast_over_bf16": with_cast},
                                          "block": {"over_bf16": 9, "with_cast_over_bf16": 9},
                                          "delayed": {"error": "none"}}}
        square = {"products": [product("qkv", 5, 5), product("8192x8192x8192", 1.8, 1.4)]}
        results = {"gemm": {"data": {"pieces": {"8192x8192x8192": square, "llama-1b": {"products": []}}}}}
        self.assertEqual(verdict(results, "casts excluded"), ("1.8", "met"))
        self.assertEqual(verdict(results, "casts included"), ("1.4", "missed"))

    def test_the_slowest_kernel_of_a_kind_counts(self):
        kernels = [{"name": "cast, one scale", "over_copy": 0.9}, {"name": "cast, a scale for 128", "over_copy": 0.5},
                   {"name": "AdamW", "error": "none"}]
        results = {"bandwidth": {"data": {"shapes": [{"kernels": kernels}]}}}
        self.assertEqual(verdict(results, "cast: share"), ("0.5", "missed"))
        self.assertEqual(verdict(results, "AdamW: share")[1], "not measured")

    def test_steps_are_those_of_1024_tokens(self):
        def step(sequence, ratio):
            side = {"tokens_per_second": 50e3, "speed_of_light_share": 0.65, "switch_steps": 1.5}
            return {"model": "qwen2.5-3b", "sequence": sequence, "fp8_over_bf16": ratio, "bf16": side, "fp8": side}
        results = {"steps-3b": {"data": {"steps": [step(4096, 0.5), step(1024, 1.39)]}}}
        self.assertEqual(verdict(results, "qwen2.5-3b: FP8 over BF16"), ("1.39", "met"))
        self.assertEqual(verdict(results, "qwen2.5-3b: BF16 tokens/s"), ("50,000", "met"))
        self.assertEqual(verdict(results, "qwen2.5-3b: BF16 share"), ("0.65", "met"))

    def test_convergence_counts_once_it_is_complete(self):
        runs = {"bf16": {}, "current": {"gap_percent": -0.3}, "block": {"gap_percent": 0.1}}
        unfinished = {"convergence": {"data": {"complete": False, "runs": runs}}}
        self.assertEqual(verdict(unfinished, "largest gap")[1], "not measured")
        complete = {"convergence": {"data": {"complete": True, "runs": runs}}}
        self.assertEqual(verdict(complete, "largest gap"), ("0.3", "missed"))

    def test_yes_and_no(self):
        self.assertEqual(verdict({"kernels": {"data": {"passed": False}}}, "our kernels"), ("no", "missed"))
        self.assertEqual(verdict({"loop": {"data": {"as_expected": True}}}, "a fault is caught"), ("yes", "met"))

    def test_the_table_has_a_line_for_each(self):
        text = targets.table(targets.judged({}))
        self.assertEqual(len(text.splitlines()), len(targets.all_targets()) + 1)


class Devices(unittest.TestCase):
    def targets_on(self, name):
        step = {"model": "qwen2.5-3b", "sequence": 1024, "fp8_over_bf16": 1.4, "bf16": {"tokens_per_second": 31e3}}
        rows = targets.judged({"steps-3b": {"data": {"steps": [step]}, "gpu": {"name": name}}})
        return {row[0]: row[2:] for row in rows}

    def test_ratios_are_of_every_device_and_tokens_of_the_one_they_were_measured_on(self):
        h100, h200 = self.targets_on("NVIDIA H100 80GB HBM3"), self.targets_on("NVIDIA H200")
        words = "qwen2.5-3b: BF16 tokens/s (LLM.Q)"
        self.assertEqual(h100[words], ("at least 30,900 (an H100's)", "met"))
        self.assertEqual(h200[words], ("at least 30,900 (of an H100)", "met"))
        for words, row in h100.items():
            if "tokens/s" not in words:
                self.assertEqual(h200[words], row)

    def test_a_device_is_known_by_its_name(self):
        for name, device in (("NVIDIA H100 PCIe", "H100"), ("NVIDIA H200 NVL", "H200"), ("NVIDIA GH200 480GB",) * 2):
            self.assertEqual(targets.device_of({"gpu": {"name": name}}), device)
        self.assertEqual(targets.device_of({"gpu": None}), "")

    def test_of_some_parts(self):
        self.assertEqual(len(targets.judged({}, ["loop"])), 1)


class Statuses(unittest.TestCase):
    def test_what_a_part_found_says_how_it_ended(self):
        for data, status in (({}, "ok"), ({"passed": True}, "ok"), ({"passed": False}, "failed"),
                             ({"as_expected": False}, "failed"), ({"errors": ["one"]}, "failed"),
                             ({"complete": False}, "cut short"), ({"complete": True}, "ok")):
            self.assertEqual(conduct.status_of(data), status, data)


class Steps(unittest.TestCase):
    def run_step(self, errors):
        """A step whose first attempts fail with `errors`; the result, and the attempts' options."""
        calls, left = [], list(errors)

        def bench(setting, budget, name, *more):
            calls.append(dict(zip(more[::2], more[1::2])))
            if left:
                raise frame.Failed(left.pop(0))
            return {"ran": True}

        setting = types.SimpleNamespace(smoke=False)
        with mock.patch.object(speed, "bench", bench):
            return speed.one_step_with(setting, None, "qwen2.5-3b", 1024, 16), calls

    def test_smaller_micro_batches_come_before_blocks_computed_again(self):
        found, calls = self.run_step(["too little memory on an H100"] * 6)
        ways = [(call["--recompute"], call["--sequences"], call["--accumulation"]) for call in calls]
        self.assertEqual(ways, [("none", 16, 4), ("swiglu", 16, 4), ("none", 8, 8), ("swiglu", 8, 8), ("none", 4, 16),
                                ("swiglu", 4, 16), ("block", 16, 4)])
        self.assertEqual(len(found["refused_before"]), 6)

    def test_a_model_that_does_not_fit_is_no_failure(self):
        def step(*_):
            raise frame.Failed(f"{speed.NO_FIT}: none, 1 sequences: too little memory")

        with mock.patch.object(speed, "one_step", step), self.assertRaisesRegex(frame.Skipped, "7b at 1024"):
            speed.steps_7b(types.SimpleNamespace(smoke=False), None, {})

    def test_another_trouble_is_no_lack_of_memory(self):
        with self.assertRaisesRegex(frame.Failed, "illegal"):
            self.run_step(["an illegal memory access was encountered"])


class Curves(unittest.TestCase):
    def test_a_curve_with_a_gap_and_an_empty_one_are_drawn(self):
        text = curves.picture({"bf16": {1: 5.0, 2: None, 3: 4.0}, "mx": {}}, "a < b", "m & m")
        self.assertIn("a &lt; b", text)
        self.assertEqual(text.count("<polyline"), 1)


if __name__ == "__main__":
    unittest.main()
