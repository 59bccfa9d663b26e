"""The model of a step on paper: small cases counted by hand, and invented measurements held against it."""

import contextlib
import dataclasses
import io
import json
import pathlib
import re
import tempfile
import unittest

import support
from gpu import model, model_machine, model_measured, model_step

# Queries as wide as the model, keys half of that. n * width is 65,536, n * ffn 131,072; a layer's matrices have 589,824
# weights, lm_head 262,144.
SMALL = model_step.Model(layers=2, width=256, heads=2, kv_heads=1, ffn=512, vocabulary=1024, tied=True)
STEP = model_step.Setup(sequence=128, sequences=2, accumulation=1)
FP8 = dataclasses.replace(STEP, fp8=True)
TRAINED = ("fprop", "dgrad", "wgrad", "lm_head")


def parts(setup, shape=SMALL, machine=None):
    return model.parts_of(machine or model_machine.machine("h200"), shape, setup)


class Counted(unittest.TestCase):
    def test_parameters_are_those_of_the_models(self):
        for name, known in (("qwen2.5-0.5b", 494_032_768), ("qwen2.5-1.5b", 1_543_714_304), ("qwen2.5-3b", 3_085_938_688),
                            ("qwen2.5-7b", 7_615_616_512)):
            self.assertEqual(model_step.parameters(model_step.MODELS[name]), known, name)

    def test_shapes_and_limits_are_those_of_the_sources(self):
        sources = (support.ROOT / "lab/bench/models.cc").read_text()
        found = re.findall(r'"(qwen2\.5-[\w.]+)", qwen\(([\d, ]+), (true|false)\)', sources)
        shapes = {name: model_step.Model(*map(int, sizes.split(", ")), tied == "true") for name, sizes, tied in found}
        self.assertEqual(shapes, model_step.MODELS)
        for file, text in (("trainer/engine/memory_choice.cc", "kLogitsMax = int64_t{1} << 29;"),
                           ("kernels/cuda/elementwise.cu", f"kRowsOfAPart = {model_step.BIAS_ROWS};"),
                           ("kernels/cuda/cudnn_attention.h", "kAttentionMatrixBytesMost = int64_t{1} << 30;")):
            self.assertIn(text, (support.ROOT / file).read_text(), file)

    def test_flops_of_a_small_step(self):
        for setup in (STEP, FP8):
            found = {name: part["flops"] for name, part in parts(setup).items()}
            for gemm in ("fprop", "dgrad", "wgrad"):
                self.assertEqual(found[gemm], 2 * 256 * 589_824 * 2, gemm)  # 2 for each weight and token, 2 layers
            self.assertEqual(found["lm_head"], 6 * 256 * 262_144)
            # Seven products of 128 keys, half of them masked, 256 wide.
            self.assertEqual(found["attention"], 7 * 256 * 128 * 256 * 2)
        self.assertEqual(model_step.counted_flops(SMALL, STEP), 256 * 6 * (2 * 589_824 + 262_144 + 2 * 128 * 256))

    def test_bytes_of_norms_and_swiglu(self):
        found = parts(STEP)
        # 32 for an element of a layer; the last norm both ways, and the zeros that its gradient is added to.
        self.assertEqual(found["norms"]["bytes"], (2 * 32 + 8 + 8 + 2) * 65_536)
        self.assertEqual(found["SwiGLU"]["bytes"], 2 * 16 * 131_072)
        again = dataclasses.replace(STEP, recompute="swiglu")  # the last layer's is still there
        self.assertEqual(parts(again)["SwiGLU"]["bytes"], (2 * 16 + 6) * 131_072)

    def test_bytes_of_casts(self):
        self.assertNotIn("casts", parts(STEP))
        inputs = (4 + 6 + 4) * 65_536 + 4 * 131_072             # norms, attention's output, SwiGLU
        gradients = 8 * 65_536 + 2 * 4 * 131_072 + 6 * 131_072  # down and o, gate and up, q, k and v
        head = 4 * 65_536 + 4 * 256 * 1024 + 6 * 262_144        # all rows at once
        found = parts(FP8)["casts"]["bytes"]
        self.assertEqual(found, 2 * (inputs + gradients + 6 * 589_824) + head)
        # Weights are rounded once a step, everything else in each micro-batch.
        twice = parts(dataclasses.replace(FP8, accumulation=2))["casts"]["bytes"]
        self.assertEqual(2 * found - twice, 2 * 6 * 589_824 + 6 * 262_144)

    def test_bytes_of_gradients(self):
        # BF16: the products of qkv (512 wide), o, gate_up (1024) and down read both operands.
        read = 2 * ((512 + 256) + (256 + 256) + (1024 + 256) + (256 + 512)) * 256
        one, three = parts(STEP), parts(dataclasses.replace(STEP, accumulation=3))
        self.assertEqual(one["wgrad"]["bytes"], 2 * (read + 4 * 589_824))
        self.assertEqual(three["wgrad"]["bytes"], 2 * (3 * read + (4 + 8 + 8) * 589_824))

    def test_sites_apart_add_up_in_fp32(self):
        self.assertEqual(parts(FP8)["input-gradient sums"]["bytes"], 2 * 2 * 6 * 65_536)
        self.assertNotIn("input-gradient sums", parts(STEP))
        self.assertNotIn("input-gradient sums", parts(dataclasses.replace(FP8, joined=True)))
        written = [it.written for it in model_step.dgrad(model_step.groups_of(SMALL)[0], 256, FP8)]
        self.assertEqual(written, [4 * 65_536, 8 * 65_536, 8 * 65_536, 0])

    def test_adamw_is_of_the_step_and_not_of_its_micro_batches(self):
        count = model_step.parameters(SMALL)
        for accumulation in (1, 4):
            found = parts(dataclasses.replace(STEP, accumulation=accumulation))
            self.assertEqual(found["AdamW"]["bytes"], (30 + 4 + 2) * count)

    def test_logits_are_made_in_parts(self):
        shape = model_step.MODELS["qwen2.5-0.5b"]
        self.assertEqual(model_step.rows_of_logits(shape, 16384), 1664)
        self.assertEqual(model_step.rows_of_logits(shape, 2048), 2048)
        found = model_step.head(shape, model_step.Setup())
        self.assertEqual(sum(it.count * it.shape[2] for it in found if it.name == "wgrad"), 4 * 16384)

    def test_a_block_computed_again_costs_its_products(self):
        again = parts(dataclasses.replace(STEP, recompute="block"))["fprop"]["flops"]
        self.assertEqual(again, parts(STEP)["fprop"]["flops"] + 2 * 256 * (589_824 - 131_072))


class Times(unittest.TestCase):
    def test_the_large_square_takes_what_its_rate_says(self):
        machine = model_machine.machine("h200")
        for kind, rate in machine.rates.items():
            it = model_step.product("", "", model_machine.LARGE, kind, 2)
            self.assertAlmostEqual(machine.computing(it), 2 * 8192 ** 3 / rate)

    def test_a_small_result_leaves_multiprocessors_idle(self):
        # 128 x 896 are 14 tiles of 64 x 128, for 132 multiprocessors.
        even = 2 * 128 * 896 * 16384 / 1e15
        self.assertGreater(model_machine.tiles_seconds((128, 896, 16384), 1e15), 5 * even)

    def test_what_bounds_a_kernel(self):
        machine = model_machine.machine("h200")
        for it, bound in ((model_step.swiglu(16384, 8960), "memory"),
                          (model_step.bias_backward(16384, 128), "latency"), (model_step.norm(16, 256), "launches"),
                          (model_step.product("", "", (8192, 8192, 8192), "bf16", 2), "products"),
                          (model_step.product("", "", (16384, 2048, 256), "fp8", 8), "memory")):
            self.assertEqual(machine.seconds(it)[1], bound, it.name)
        self.assertAlmostEqual(machine.seconds(model_step.amax(32768, 4096))[0], 2 * 32768 * 4096 / 4.27e12, delta=4e-6)

    def test_fp8_products_are_never_slower(self):
        for device in model_machine.BANDWIDTH:
            machine = model_machine.machine(device)
            for name, shape in model_step.MODELS.items():
                setup = model_step.usual_setup(device, name)
                bf16 = parts(setup, shape, machine)
                fp8 = parts(dataclasses.replace(setup, fp8=True), shape, machine)
                slow = parts(dataclasses.replace(setup, fp8=True, fast=False), shape, machine)
                for part in TRAINED:
                    self.assertLess(fp8[part]["seconds"], bf16[part]["seconds"], (device, name, part))
                    self.assertLessEqual(fp8[part]["seconds"], slow[part]["seconds"], (device, name, part))

    def test_more_bandwidth_and_overlap_never_hurt(self):
        for name in model_step.MODELS:
            setup = model_step.usual_setup("h200", name)
            seconds = [model.predicted(machine, name, setup)["fp8"]["step_seconds"] for machine in (
                model_machine.machine("h200"), model_machine.machine("h100"), model_machine.machine("h100", overlaps=False),
                model_machine.machine("h100", overlaps=False, recorded=False))]
            self.assertEqual(seconds, sorted(seconds), name)
            self.assertEqual(len(set(seconds)), 4, name)

    def test_shares_add_up(self):
        found = model.predicted(model_machine.machine("h100"), "qwen2.5-3b", model_step.usual_setup("h100", "qwen2.5-3b"))
        for key in ("bf16", "fp8"):
            self.assertAlmostEqual(sum(part["share"] for part in found[key]["parts"].values()), 1)
            self.assertEqual(set(found[key]["parts"]) | {"casts", "input-gradient sums"}, set(model_step.PARTS))


def invented(name="NVIDIA H100 80GB HBM3", **more):
    """A result with products at half the assumed rate, a copy of 2 TB/s, one kernel, and one step."""
    products = [{"model": "", "site": "8192x8192x8192", "gemm": "fprop", "m": 8192, "n": 8192, "k": 8192,
                 "bf16": {"flops_per_second": 400e12},
                 "fp8": {"current": {"flops_per_second": 600e12}, "delayed": {"error": "none"}}}]
    kernels = [{"name": "SwiGLU", "shape": "65536x8960", "bytes": 6 * 65536 * 8960, "copy_bytes_per_second": 2e12,
                "over_copy": 0.425}, {"name": "cast, a scale for 128", "shape": "1x1", "bytes": 1, "over_copy": 1},
               {"name": "AdamW", "shape": "128", "bytes": 1, "error": "none"}]
    step = {"model": "qwen2.5-1.5b", "recipe": "current", "accumulate": "hopper", "sequence": 1024, "sequences": 16,
            "accumulation": 4, "recompute": "none", "moments": "fp32", "keep_bf16": [],
            "bf16": {"step_seconds": 2.0}, "fp8": {"step_seconds": 1.6}, "step_gemms": {"flops_per_second": 390e12}}
    data = {"gemm": {"pieces": {"8192x8192x8192": {"products": products}}},
            "bandwidth": {"shapes": [{"kernels": kernels}]},
            "steps-small": {"steps": [step, {**step, "model": "", "size": "demo"}, {**step, "recipe": "block"},
                                      {**step, "keep_bf16": ["*.o_proj"]}]}}
    return {"gpu": {"name": name}, "smoke": False,
            "parts": {part: {"status": "ok", "date": "2026-11-25", "data": found} for part, found in data.items()}, **more}


class Measured(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def ran(self, *arguments, **files):
        """(exit status, what it printed) with these files given as measured."""
        given = list(arguments)
        for name, content in files.items():
            path = self.folder / f"{name}.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            given += ["--measured", str(path)]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = model.main(given)
        return status, out.getvalue()

    def held(self, **files):
        status, text = self.ran("--json", **files)
        self.assertEqual(status, 0, text)
        return json.loads(text)

    def test_products(self):
        found = self.held(file=invented())
        self.assertEqual(found["device"], "h100")
        rows = {row["kind"]: row for row in found["measured"]["products"]}
        self.assertEqual(set(rows), {"bf16", "fp8"})
        self.assertAlmostEqual(rows["bf16"]["measured_over_predicted"], 400e12 / model_machine.machine("h100").rates["bf16"], places=2)
        self.assertAlmostEqual(rows["fp8"]["predicted_tflops"], model_machine.machine("h100").rates["fp8"] / 1e12, delta=8)  # less a launch

    def test_kernels(self):
        rows = self.held(file=invented())["measured"]["kernels"]
        self.assertEqual([row["kernel"] for row in rows], ["SwiGLU"])
        self.assertAlmostEqual(rows[0]["measured_over_predicted"], 0.425 / model_machine.MEASURED["h100"]["SwiGLU"], places=2)

    def test_steps_beside_the_paper_and_beside_measured_parts(self):
        measured = self.held(file=invented())["measured"]
        rows = {row["what"]: row for row in measured["steps"]}
        paper, known, seen = rows["bf16 step, ms"]["figures"]
        self.assertEqual(seen, 2000)
        self.assertGreater(known, 1.6 * paper)
        self.assertAlmostEqual(rows["bf16 step, ms"]["measured_over_known"], 2000 / known)
        self.assertEqual(rows["FP8 over BF16"]["figures"][2], 1.25)
        self.assertEqual(rows["fp8 tokens/s"]["figures"][2], 65536 / 1.6)
        self.assertAlmostEqual(rows["BF16 products alone, TFLOP/s"]["measured_over_known"], 1, delta=0.15)
        self.assertEqual(len(measured["left_out"]), 3)

    def test_fast_sums_that_were_not_measured_are_as_much_faster_as_on_paper(self):
        paper = model_machine.machine("h100")
        known, _ = model_measured.with_measured(paper, {name: part["data"] for name, part in invented()["parts"].items()})
        self.assertEqual(known.rates["bf16"], 400e12)
        self.assertAlmostEqual(known.rates["fast"] / known.rates["fp8"], paper.rates["fast"] / paper.rates["fp8"])
        self.assertEqual((known.copy, known.over_copy), (2e12, {"SwiGLU": 0.425}))

    def test_the_newest_of_a_part_counts(self):
        later = invented()
        later["parts"] = {"gemm": {"status": "ok", "date": "2026-11-26", "data": {"pieces": {}}}}
        self.assertEqual(self.held(one=later, two=invented())["measured"]["products"], [])

    def test_what_cannot_be_used_is_said(self):
        for reason, files in (("has no parts", {"file": {}}), ("sizes mean nothing", {"file": invented(smoke=True)}),
                              ("Expecting value", {"file": "not JSON"}),
                              ("several devices", {"one": invented(), "two": invented("NVIDIA H200")})):
            status, text = self.ran(**files)
            self.assertEqual(status, 2)
            self.assertIn(reason, text)

    def test_tables(self):
        status, text = self.ran("--device", "h100")
        self.assertEqual(status, 0)
        self.assertIn("does not fit", text)
        self.assertEqual(text.count("FP8 over BF16"), 5)
        status, text = self.ran(file=invented())
        self.assertIn("measured over the last but one", text)
        self.assertIn("left out: a size", text)
        self.assertIn("nothing in it", self.ran(file=invented(parts={}))[1])


if __name__ == "__main__":
    unittest.main()
