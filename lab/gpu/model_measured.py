"""Measured figures of scripts/gpu-check beside those of the model on paper."""

import collections
import dataclasses
import json
import math
import statistics

from . import model_machine, model_step, targets

SQUARE = targets.LARGE
RECIPE = "current"


class Unusable(Exception):
    """A file that is no result of gpu-check, or says nothing that the model is of."""


def read(paths):
    """(device as the model has it, or nothing; part → its data) of result files, the newest of each part."""
    found, devices = [], set()
    for path in paths:
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Unusable(f"{path}: {error}") from error
        if not isinstance(whole, dict) or not isinstance(whole.get("parts"), dict):
            raise Unusable(f"{path}: no result of scripts/gpu-check: it has no parts")
        if whole.get("smoke"):
            raise Unusable(f"{path}: of --smoke, whose sizes mean nothing")
        devices.add(targets.device_of(whole).lower())
        found += [(result.get("date", ""), name, result["data"]) for name, result in whole["parts"].items()
                  if result.get("data")]
    if len(devices) > 1:
        raise Unusable(f"of several devices: {', '.join(sorted(devices))}")
    device = devices.pop() if devices else ""
    return (device if device in model_machine.BANDWIDTH else None,
            {name: data for _, name, data in sorted(found, key=lambda one: one[0])})


# ---- products ----

def products_in(data):
    return [product for piece in data.get("gemm", {}).get("pieces", {}).values() for product in piece.get("products", [])]


def rates_in(product):
    """Kind → FLOP/s that were measured of one product."""
    timed = {"bf16": product.get("bf16", {}), "fp8": product.get("fp8", {}).get(RECIPE, {}),
             "fast": product.get("fp8", {}).get(RECIPE + "/hopper", {})}
    return {kind: one["flops_per_second"] for kind, one in timed.items() if "flops_per_second" in one}


def predicted_rate(machine, product, kind):
    shape = (product["m"], product["n"], product["k"])
    result = model_step.FP32 if product.get("gemm") == "wgrad" else model_step.BF16
    it = model_step.product("", "", shape, kind, result)
    return it.flops / machine.seconds(it)[0]


def product_rows(machine, data):
    rows = []
    for product in products_in(data):
        name = " ".join(filter(None, (product.get("model"), product["site"], product.get("gemm"))))
        for kind, measured in rates_in(product).items():
            predicted = predicted_rate(machine, product, kind)
            rows.append({"product": name, "shape": [product["m"], product["n"], product["k"]], "kind": kind,
                         "predicted_tflops": predicted / 1e12, "measured_tflops": measured / 1e12,
                         "measured_over_predicted": measured / predicted})
    return rows


# ---- kernels that memory bounds ----

def kernels_in(data):
    """(kernel as measured, its operation) of those that the model has."""
    found = []
    for shape in data.get("bandwidth", {}).get("shapes", []):
        for kernel in shape.get("kernels", []):
            if "over_copy" in kernel and kernel["name"] in model_step.KERNELS:
                sizes = [int(size) for size in kernel["shape"].split("x")]
                found.append((kernel, model_step.KERNELS[kernel["name"]](*sizes)))
    return found


def kernel_rows(machine, data):
    rows = []
    for kernel, it in kernels_in(data):
        # The model's own copy beside the model's own kernel: a slow memory is no fault of a kernel.
        predicted = kernel["bytes"] / machine.copy / machine.seconds(it)[0]
        rows.append({"kernel": kernel["name"], "shape": kernel["shape"], "predicted_over_copy": predicted,
                     "measured_over_copy": kernel["over_copy"], "measured_over_predicted": kernel["over_copy"] / predicted})
    return rows


def with_measured(machine, data):
    """The machine with what was measured in place of what is taken for granted; words of what was."""
    rates, said = dict(machine.rates), []
    for product in products_in(data):
        if product["site"] == SQUARE:
            measured = rates_in(product)
            if "fp8" in measured and "fast" not in measured:  # not measured: as much faster as on paper
                measured["fast"] = measured["fp8"] * machine.rates["fast"] / machine.rates["fp8"]
            rates.update(measured)
            said += [f"{kind} {rate / 1e12:,.0f} TFLOP/s" for kind, rate in measured.items()]
    kernels = kernels_in(data)
    if not kernels:
        return dataclasses.replace(machine, rates=rates), said
    copy = statistics.median(kernel["copy_bytes_per_second"] for kernel, _ in kernels)
    shares = collections.defaultdict(list)
    for kernel, it in kernels:
        # What the kernel reads again is part of its operation's bytes, not of the measured ones.
        shares[kernel["name"]].append(kernel["over_copy"] * it.bytes / kernel["bytes"])
    said.append(f"copy {copy / 1e12:.2f} TB/s; {len(shares)} kernels")
    over_copy = {name: statistics.median(all_of) for name, all_of in shares.items()}
    return dataclasses.replace(machine, rates=rates, copy=copy, over_copy=over_copy), said


# ---- steps ----

def setup_of(step):
    """How a measured step was run, or the reason why the model has no such step."""
    if step.get("model") not in model_step.MODELS:
        return f"{step.get('model') or 'a size'}: the model on paper has Qwen2.5"
    if step.get("recipe") != RECIPE:
        return f"{step['model']}: recipe {step.get('recipe')}; the model on paper has {RECIPE}"
    kept = step.get("keep_bf16", [])
    if kept not in ([], ["lm_head"]):
        return f"{step['model']}: sites left in BF16: {', '.join(kept)}"
    return model_step.Setup(sequence=step["sequence"], sequences=step["sequences"], accumulation=step["accumulation"],
                            recompute=step["recompute"], moments=step["moments"], fast=step.get("accumulate") == "hopper",
                            head_fp8=not kept)


def seconds_of(machine, model, setup):
    return math.fsum(it.count * machine.seconds(it)[0] for it in model_step.operations(model, setup))


def plain_rate(machine, model, setup):
    """FLOP/s of the step's products alone in BF16, as `step_gemms` has them."""
    products = [it for it in model_step.operations(model, dataclasses.replace(setup, fp8=False, recompute="none"))
                if it.kind == "bf16"]
    return sum(it.count * it.flops for it in products) / sum(it.count * machine.seconds(it)[0] for it in products)


def step_rows(paper, known, data):
    """`paper`: the machine as assumed; `known`: with what was measured of its parts. Rows, and words of steps left out."""
    rows, left_out = [], []
    steps = [step for name in dict.fromkeys(targets.PART_OF.values()) for step in data.get(name, {}).get("steps", [])]
    for step in steps:
        setup = setup_of(step)
        if isinstance(setup, str):
            left_out.append(setup)
            continue
        model = model_step.MODELS[step["model"]]
        seconds = {}
        for precision in ("bf16", "fp8"):
            own = dataclasses.replace(setup, fp8=precision == "fp8")
            measured = step[precision]["step_seconds"]
            seconds[precision] = [seconds_of(paper, model, own), seconds_of(known, model, own), measured]
            rows.append({"model": step["model"], "sequence": setup.sequence, "what": f"{precision} step, ms",
                         "figures": [1e3 * one for one in seconds[precision]]})
            rows.append({"model": step["model"], "sequence": setup.sequence, "what": f"{precision} tokens/s",
                         "figures": [setup.tokens_of_step() / one for one in seconds[precision]]})
        rows.append({"model": step["model"], "sequence": setup.sequence, "what": "FP8 over BF16",
                     "figures": [bf16 / fp8 for bf16, fp8 in zip(seconds["bf16"], seconds["fp8"])]})
        if "step_gemms" in step:
            rows.append({"model": step["model"], "sequence": setup.sequence, "what": "BF16 products alone, TFLOP/s",
                         "figures": [plain_rate(paper, model, setup) / 1e12, plain_rate(known, model, setup) / 1e12,
                                     step["step_gemms"]["flops_per_second"] / 1e12]})
    for row in rows:
        row["measured_over_known"] = row["figures"][2] / row["figures"][1]
    return rows, left_out


def compared(paper, data):
    known, said = with_measured(paper, data)
    steps, left_out = step_rows(paper, known, data)
    return {"in_place_of_assumptions": said, "steps": steps, "left_out": left_out, "products": product_rows(paper, data),
            "kernels": kernel_rows(paper, data)}
