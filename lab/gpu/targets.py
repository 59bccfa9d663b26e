"""What the measured figures are held against. Shares and ratios hold for every device; tokens/s that others report are of
the device that they had, and are marked so where another one was measured."""

import re

LARGE = "8192x8192x8192"
MEMORY_BOUND = {"cast": "cast", "transpose": "transpose", "norm": "RMSNorm", "SwiGLU": "SwiGLU", "AdamW": "AdamW",
                "cross-entropy": "cross-entropy"}
REFERENCE = "H100"  # what the tokens/s below were measured on
# LLM.Q on it (FP8, BF16 tokens/s at sequences of 1024), and the ratio of ours that is wanted.
STEPS = {"qwen2.5-0.5b": (164e3, 149e3, 1.15), "qwen2.5-1.5b": (73.0e3, 58.9e3, 1.30),
         "qwen2.5-3b": (40.3e3, 30.9e3, 1.38), "qwen2.5-7b": (19.1e3, 13.8e3, 1.48)}
LLMQ = " (LLM.Q)"  # ends the words of a target that is of REFERENCE
PART_OF = {"qwen2.5-0.5b": "steps-small", "qwen2.5-1.5b": "steps-small", "qwen2.5-3b": "steps-3b",
           "qwen2.5-7b": "steps-7b"}


def large_square(key):
    def read(data):
        products = data.get("pieces", {}).get(LARGE, {}).get("products", [])
        ratios = [timed[key] for product in products if product["site"] == LARGE
                  for recipe, timed in product["fp8"].items()
                  if recipe.split("/")[0] in ("current", "delayed") and key in timed]
        return max(ratios, default=None)
    return read


def least_over_copy(word):
    def read(data):
        ratios = [kernel["over_copy"] for shape in data.get("shapes", []) for kernel in shape["kernels"]
                  if word in kernel["name"] and "over_copy" in kernel]
        return min(ratios, default=None)
    return read


def of_step(model, *keys):
    def read(data):
        for step in data.get("steps", []):
            if step["model"] == model and step["sequence"] == 1024:
                for key in keys:
                    step = step.get(key) if isinstance(step, dict) else None
                return step
        return None
    return read


def largest_gap(data):
    gaps = [abs(run["gap_percent"]) for run in data.get("runs", {}).values() if "gap_percent" in run]
    return max(gaps, default=None) if data.get("complete") else None


def switch(data):
    return max((step[side]["switch_steps"] for step in data.get("steps", []) for side in ("bf16", "fp8")
                if "switch_steps" in step[side]), default=None)


def key(*path):
    def read(data):
        for name in path:
            data = data.get(name) if isinstance(data, dict) else None
        return data
    return read


def all_targets():
    """(words, part, how to read it from the part's data, "at least" or "below" or "is", bound)."""
    found = [
        ("our kernels compute what the CPU's do", "kernels", key("passed"), "is", True),
        ("no two threads race in shared memory", "racecheck", key("passed"), "is", True),
        ("no accesses outside of their memory", "memcheck", key("passed"), "is", True),
        ("attention is near FP64's, the same bits again", "attention", key("passed"), "is", True),
        ("runs repeat bit for bit and agree with the CPU's", "engine", key("passed"), "is", True),
        ("the device adds up as emulated", "accumulation", key("default_explains_the_device_best"), "is", True),
        ("FP8 over BF16 at 8192^3, casts excluded", "gemm", large_square("over_bf16"), "at least", 1.75),
        ("FP8 over BF16 at 8192^3, casts included", "gemm", large_square("with_cast_over_bf16"), "at least", 1.5),
    ]
    for name, word in MEMORY_BOUND.items():
        found.append((f"{name}: share of a copy's bytes/s", "bandwidth", least_over_copy(word), "at least", 0.85))
    for model, (fp8, bf16, ratio) in STEPS.items():
        part = PART_OF[model]
        found += [
            (f"{model}: FP8 over BF16", part, of_step(model, "fp8_over_bf16"), "at least", ratio),
            (f"{model}: BF16 tokens/s{LLMQ}", part, of_step(model, "bf16", "tokens_per_second"), "at least", bf16),
            (f"{model}: FP8 tokens/s{LLMQ}", part, of_step(model, "fp8", "tokens_per_second"), "at least", fp8),
        ]
        if model in ("qwen2.5-3b", "qwen2.5-7b"):
            found.append((f"{model}: BF16 share of the speed of light", part,
                          of_step(model, "bf16", "speed_of_light_share"), "at least", 0.62))
    found += [
        ("a change of the plan, in steps", "steps-small", switch, "below", 5),
        ("checkpoints every 100 steps, share of the run", "overheads", key("checkpoint_share"), "below", 0.02),
        ("statistics every 100 steps, share of the run", "overheads", key("statistics_share"), "below", 0.02),
        ("largest gap of a recipe to BF16 over 3,000 steps, %", "convergence", largest_gap, "below", 0.25),
        ("a fault is caught, contained and recovered from", "loop", key("as_expected"), "is", True),
        ("over llm.c at 124M", "llmc", key("sizes", "124M", "ours_over_theirs"), "at least", 1),
        ("over llm.c at 1558M", "llmc", key("sizes", "1558M", "ours_over_theirs"), "at least", 1),
        ("over PyTorch in BF16 at 1.5B", "torch", key("bf16", "ours_over_theirs"), "at least", 1),
        ("over PyTorch in FP8 at 1.5B", "torch", key("fp8", "ours_over_theirs"), "at least", 1),
    ]
    return found


def met(value, sense, bound):
    if sense == "is":
        return value is bound
    return value >= bound if sense == "at least" else value < bound


def device_of(result):
    """What a target may be of: "H100", "H200", or whatever the device calls itself."""
    name = (result.get("gpu") or {}).get("name", "")
    found = re.search(r"\b(H100|H200)\b", name)
    return found[1] if found else name


def judged(results, parts=None):
    """Of part → result: rows (words, figure, target, "met", "missed" or "not measured"), of all parts or of some."""
    rows = []
    for words, part, read, sense, bound in all_targets():
        if parts is not None and part not in parts:
            continue
        result = results.get(part, {})
        value = read(result["data"]) if result.get("data") else None
        verdict = "not measured" if value is None else "met" if met(value, sense, bound) else "missed"
        figure = "" if value is None else shown(value)
        target = f"{sense} {shown(bound)}"
        if words.endswith(LLMQ):
            target += f" (an {REFERENCE}'s)" if device_of(result) in (REFERENCE, "") else f" (of an {REFERENCE})"
        rows.append((words, figure, target, verdict))
    return rows


def shown(value):
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def table(rows):
    rows = [("figure", "measured", "target", "verdict")] + rows
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  {row[3]}" for row in rows)
