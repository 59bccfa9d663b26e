"""The parts that measure products, kernels, steps and blocks."""

from . import frame

RECOMPUTE = ["none", "swiglu", "block"]
TOKENS = 16384  # of a micro-batch, if they fit
# How a refusal for lack of memory reads; "an illegal memory access" is something else.
TOO_LITTLE = ("too little memory", "of the GPU's memory", "out of memory")
NO_FIT = "does not fit this device"
# FP8 steps sum as TransformerEngine's and torchao's do by default: fast in fprop, promoted in dgrad and wgrad. On the CPU
# that is emulated.
SUMS = ["--accumulate", "hopper"]
STEP_TOKENS = 65536  # so that the optimizer weighs what it weighs in a run


def bench(setting, budget, name, *more):
    return frame.run_json(setting, [setting.program("gnomon"), "bench", name, "--device", setting.device, "--threads",
                                    setting.threads, *more, "--json"], budget)


# Products by what is asked for at once: what the targets need first.
PIECES = [["--size", "8192x8192x8192"], *(["--shapes", model] for model in ("llama-8b", "llama-3b", "llama-1b", "llama-70b"))]
TINY_PIECES = [["--size", "256x128x128"], ["--shapes", "gpt2-124m", "--tokens", "32"]]


def gemm(setting, budget, found):
    """Products of linear layers, FP8 beside BF16."""
    more = ["--rounds", "5", "--seconds", "0.03"]
    if setting.smoke:
        more = ["--rounds", "1", "--seconds", "0", "--recipe", "current"]
    pieces = found.setdefault("pieces", {})
    for piece in TINY_PIECES if setting.smoke else PIECES:
        if piece[1] not in pieces:
            pieces[piece[1]] = bench(setting, budget, "gemm", *piece, *more)


def bandwidth(setting, budget, found):
    """What memory bounds, beside a copy."""
    sizes = ((65536, 1536, 8960), (32768, 4096, 14336), (16384, 8192, 28672))  # several times as large as the cache
    more = []
    if setting.smoke:
        sizes = ((128, 128, 256),)
        more = ["--vocabulary", "512", "--logit-rows", "16", "--parameters", "65536", "--rounds", "1", "--seconds", "0"]
    shapes = found.setdefault("shapes", [])
    for size in sizes:
        if list(size) not in [shape["asked_for"] for shape in shapes]:
            tokens, width, ffn = size
            measured = bench(setting, budget, "kernels", "--tokens", tokens, "--width", width, "--ffn", ffn, *more)
            shapes.append({"asked_for": list(size), **measured})


def one_step(setting, budget, model, sequence, more=()):
    return one_step_with(setting, budget, model, sequence, max(1, TOKENS // sequence), more)


def ways_to_fit(sequences, accumulation):
    """Recomputation, sequences of a micro-batch, micro-batches: what costs least first. Smaller micro-batches cost a few
    per cent, blocks computed again a quarter of a step's products."""
    halvings = [split for split in (1, 2, 4) if sequences % split == 0]
    return ([(recompute, sequences // split, accumulation * split) for split in halvings for recompute in RECOMPUTE[:2]]
            + [(RECOMPUTE[2], sequences // split, accumulation * split) for split in halvings])


def one_step_with(setting, budget, model, sequence, sequences, more=(), step_tokens=STEP_TOKENS):
    """A model's step, giving up as much memory as it must."""
    if setting.smoke:
        return bench(setting, budget, "step", "--size", "demo", "--rounds", "1", "--steps", "2", *more)
    refused = []
    accumulation = max(1, step_tokens // (sequence * sequences))
    for recompute, parts, micro_batches in ways_to_fit(sequences, accumulation):
        try:
            found = bench(setting, budget, "step", "--model", model, "--sequence", sequence, "--sequences", parts,
                          "--accumulation", micro_batches, "--recompute", recompute, "--rounds", "2", "--steps", "3", *SUMS, *more)
            return {**found, "refused_before": refused}
        except frame.Failed as error:
            if not any(words in str(error) for words in TOO_LITTLE):
                raise
            refused.append(f"{recompute}, {parts} sequences: {error}"[:500])
    raise frame.Failed(f"{NO_FIT}: " + "; ".join(refused))


def steps(setting, budget, found, models, more=()):
    """Of each model, at the length of the targets first. One that fails does not end the others."""
    measured, errors = found.setdefault("steps", []), []
    found["errors"] = errors
    done = [[step["asked_for"], step["asked_length"]] for step in measured] + found.get("leave_out", [])
    for sequence in (1024,) if setting.smoke else (1024, 4096):
        for model in models[:1] if setting.smoke else models:
            if [model, sequence] in done:
                continue
            try:
                step = one_step(setting, budget, model, sequence, more)
                measured.append({"asked_for": model, "asked_length": sequence, **step})
            except frame.Failed as error:
                errors.append(f"{model} at {sequence}: {error}")
    if errors and not measured and all(NO_FIT in error for error in errors):
        raise frame.Skipped("; ".join(errors))


def steps_small(setting, budget, found):
    """Steps of Qwen2.5 0.5B and 1.5B."""
    steps(setting, budget, found, ["qwen2.5-0.5b", "qwen2.5-1.5b"])


def steps_3b(setting, budget, found):
    """Steps of Qwen2.5 3B."""
    steps(setting, budget, found, ["qwen2.5-3b"])


def steps_7b(setting, budget, found):
    """Steps of Qwen2.5 7B, with moments in FP8: FP32 ones do not fit beside masters and gradients."""
    steps(setting, budget, found, ["qwen2.5-7b"], ("--moments", "fp8"))


def block(setting, budget, found):
    """The table of one block, FP8 over BF16, with its picture."""
    picture = setting.beside("block.svg")
    more = ["--picture", picture]
    if not setting.smoke:
        more += SUMS
    else:
        more += ["--sizes", "125M", "--sequences", "32", "--batches", "1", "2", "--rounds", "1", "--seconds", "0"]
    found.update(picture=picture.name, **bench(setting, budget, "block", *more))
