#!/usr/bin/env python3
"""One training step on paper, part by part, for an H100 SXM and an H200: what scripts/gpu-check's figures are held against.

    lab/gpu/model.py                                   Qwen2.5 0.5B, 1.5B, 3B, 7B on an H200, sequences of 1,024
    lab/gpu/model.py --device h100 --model qwen2.5-3b
    lab/gpu/model.py --measured lab/results/FILE.json     measured figures beside the predicted ones

A part's time is the sum of its kernels', and a kernel takes the longest of: its FLOPs at the products' rate, its bytes at a
share of a copy's; and its launch. The machines' figures and where they are from: model_machine.py; the
step's kernels: model_step.py. With --measured the middle column has the rates of products, the copy and the kernels' shares
as the file has them in place of what is assumed: what is left between it and the measured column is wrong in the model
itself, or in the engine. Exit status: 0, or 2 where a file cannot be used.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from gpu import model_machine, model_measured, model_step  # noqa: E402

FITS_NOT = {("h100", "qwen2.5-7b"): "does not fit an H100's memory; shown as if it did"}


def parts_of(machine, model, setup):
    """Part → seconds, FLOPs, bytes, launches of a step, and what bounds most of it."""
    found = {}
    bounds = collections.defaultdict(collections.Counter)
    for it in model_step.operations(model, setup):
        if it.count == 0:
            continue
        seconds, bound = machine.seconds(it)
        part = found.setdefault(it.part, {"seconds": 0.0, "flops": 0.0, "bytes": 0.0, "launches": 0.0})
        for key, each in (("seconds", seconds), ("flops", it.flops), ("bytes", it.bytes), ("launches", it.launches)):
            part[key] += it.count * each
        bounds[it.part][bound] += it.count * seconds
    whole = sum(part["seconds"] for part in found.values())
    for name, part in found.items():
        part.update(share=part["seconds"] / whole, bound=bounds[name].most_common(1)[0][0])
    return {name: found[name] for name in model_step.PARTS if name in found}


def precision(machine, model, setup):
    parts = parts_of(machine, model, setup)
    seconds = sum(part["seconds"] for part in parts.values())
    rate = model_step.counted_flops(model, setup) / seconds
    return {"step_seconds": seconds, "tokens_per_second": setup.tokens_of_step() / seconds,
            "model_flops_utilisation": rate / model_machine.PEAK_BF16, "parts": parts}


def predicted(machine, name, setup):
    model = model_step.MODELS[name]
    found = {"model": name, "device": machine.name, "parameters": model_step.parameters(model),
             "sequence": setup.sequence, "sequences": setup.sequences, "accumulation": setup.accumulation,
             "recompute": setup.recompute, "moments": setup.moments}
    if (machine.name, name) in FITS_NOT:
        found["note"] = FITS_NOT[machine.name, name]
    for key in ("bf16", "fp8"):
        found[key] = precision(machine, model, dataclasses.replace(setup, fp8=key == "fp8"))
    found["fp8_over_bf16"] = found["bf16"]["step_seconds"] / found["fp8"]["step_seconds"]
    return found


# ---- tables ----

def aligned(rows, words=1):
    """The first `words` columns to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) if column < words else cell.rjust(width)
                               for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def part_cells(part):
    if part is None:
        return ["", "", "", "", "", ""]
    return [f"{1e3 * part['seconds']:.2f}", f"{100 * part['share']:.1f}%", part["bound"], f"{part['flops'] / 1e12:.1f}",
            f"{part['bytes'] / 1e9:.1f}", f"{part['launches']:,.0f}"]


def shown(found):
    head = ["ms", "share", "bound by", "TFLOP", "GB", "launches"]
    rows = [["part", *(f"BF16 {head[0]}", *head[1:]), *(f"FP8 {head[0]}", *head[1:])]]
    for name in model_step.PARTS:
        parts = [found[key]["parts"].get(name) for key in ("bf16", "fp8")]
        if any(parts):
            rows.append([name, *(cell for part in parts for cell in part_cells(part))])
    total = []
    for key in ("bf16", "fp8"):
        total += [f"{1e3 * found[key]['step_seconds']:.2f}", "", "",
                  *(f"{sum(part[what] for part in found[key]['parts'].values()) / unit:,.{digits}f}"
                    for what, unit, digits in (("flops", 1e12, 1), ("bytes", 1e9, 1), ("launches", 1, 0)))]
    rows.append(["step", *total])
    said = (f"{found['model']} on an {found['device'].upper()}: {found['parameters'] / 1e9:.3f} B parameters, "
            f"{found['accumulation']} x {found['sequences']} x {found['sequence']} tokens, recompute {found['recompute']}, "
            f"moments {found['moments']}" + (f" ({found['note']})" if "note" in found else ""))
    rates = (f"tokens/s: BF16 {found['bf16']['tokens_per_second']:,.0f}, FP8 {found['fp8']['tokens_per_second']:,.0f}; "
             f"FP8 over BF16 {found['fp8_over_bf16']:.2f}; utilisation of BF16's peak "
             f"{found['bf16']['model_flops_utilisation']:.2f}, {found['fp8']['model_flops_utilisation']:.2f}")
    return f"{said}\n{aligned(rows)}\n{rates}\n"


def summary(all_found):
    rows = [["model", "BF16 tokens/s", "FP8 tokens/s", "FP8 over BF16"]]
    rows += [[one["model"], f"{one['bf16']['tokens_per_second']:,.0f}", f"{one['fp8']['tokens_per_second']:,.0f}",
              f"{one['fp8_over_bf16']:.2f}"] for one in all_found]
    return aligned(rows)


def number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def comparison(found):
    said = ["measured, in place of what is assumed: " + ("; ".join(found["in_place_of_assumptions"]) or "nothing")]
    if found["steps"]:
        rows = [["step", "figure", "on paper", "by measured parts", "measured", "measured over the last but one"]]
        rows += [[f"{row['model']} at {row['sequence']}", row["what"], *map(number, row["figures"]),
                  f"{row['measured_over_known']:.2f}"] for row in found["steps"]]
        said.append(aligned(rows, 2))
    if found["products"]:
        rows = [["product", "kind", "shape", "TFLOP/s on paper", "measured", "ratio"]]
        rows += [[row["product"], row["kind"], "x".join(map(str, row["shape"])), number(row["predicted_tflops"]),
                  number(row["measured_tflops"]), f"{row['measured_over_predicted']:.2f}"] for row in found["products"]]
        said.append(aligned(rows, 2))
    if found["kernels"]:
        rows = [["kernel", "shape", "of a copy, on paper", "measured", "ratio"]]
        rows += [[row["kernel"], row["shape"], number(row["predicted_over_copy"]), number(row["measured_over_copy"]),
                  f"{row['measured_over_predicted']:.2f}"] for row in found["kernels"]]
        said.append(aligned(rows, 2))
    said += [f"left out: {reason}" for reason in found["left_out"]]
    if not any(found[key] for key in ("steps", "products", "kernels")):
        said.append("nothing in it that the model has")
    return "\n\n".join(said) + "\n"


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(model_machine.BANDWIDTH), help="default: the measured one, else h200")
    parser.add_argument("--model", action="append", choices=list(model_step.MODELS), help="default: all")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens of one; a micro-batch keeps its tokens")
    parser.add_argument("--measured", action="append", type=pathlib.Path, default=[], metavar="FILE",
                        help="a result file of scripts/gpu-check; may be given several times")
    parser.add_argument("--joined", action="store_true", help="as if q, k, v were one product in FP8 too, and gate, up")
    parser.add_argument("--no-overlap", action="store_true", help="as if products stored their results after computing them")
    parser.add_argument("--no-graphs", action="store_true", help="as with GNOMON_GRAPHS=off")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    if given.sequence < 1 or 4096 % given.sequence:
        parser.error(f"--sequence {given.sequence}: expected a divisor of 4096")
    return given


def main(arguments=None):
    given = parsed(arguments)
    try:
        device, data = model_measured.read(given.measured)
    except model_measured.Unusable as error:
        print(f"lab/gpu/model.py: {error}", file=sys.stderr)
        return 2
    machine = model_machine.machine(given.device or device or "h200", recorded=not given.no_graphs,
                                    overlaps=not given.no_overlap)
    found = []
    for name in given.model or model_step.MODELS:
        usual = model_step.usual_setup(machine.name, name)
        setup = dataclasses.replace(usual, sequence=given.sequence, sequences=usual.tokens() // given.sequence,
                                    joined=given.joined)
        found.append(predicted(machine, name, setup))
    held = model_measured.compared(machine, data) if given.measured else None
    if given.json:
        print(json.dumps({"device": machine.name, "steps": found, **({"measured": held} if held else {})}, indent=1))
    elif held:
        print(f"held against an {machine.name.upper()} on paper\n\n{comparison(held)}", end="")
    else:
        print("\n".join([*map(shown, found), summary(found)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
