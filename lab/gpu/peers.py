"""The parts that run others' programs on the same device: llm.c, and PyTorch with torch.compile."""

from . import frame, speed

# Ours of the same dimensions, for each of llm.c's.
LLMC = {"124M": ("d12", "gpt2-124m", 32), "1558M": ("d48", "gpt2-1558m", 8)}


def llmc(setting, budget, found):
    """llm.c's train_gpt2cu in BF16 at 124M and 1558M, and ours of the same dimensions."""
    if not setting.given.llmc:
        raise frame.Skipped("no --llmc FOLDER: its sources, or a built train_gpt2cu")
    sizes, errors = found.setdefault("sizes", {}), []
    found["errors"] = errors
    script = frame.ROOT / "lab/peers/llmc_gpu.py"
    for size, (descriptor, model, sequences) in list(LLMC.items())[:1 if setting.smoke else 2]:
        command = [setting.given.python, script, "--llmc", setting.given.llmc, "--work", setting.work / "llmc",
                   "--descriptor", descriptor, "--sequences", sequences]
        if setting.given.cudnn_frontend:
            command += ["--cudnn-frontend", setting.given.cudnn_frontend]
        if setting.smoke:
            command.append("--only-prepare")
        if "ours_over_theirs" in sizes.get(size, {}):
            continue
        try:
            one = sizes.setdefault(size, {})
            if "llmc" not in one:
                one["llmc"] = frame.run_json(setting, command, budget)
            ours = speed.one_step_with(setting, budget, model, 1024, sequences, step_tokens=1024 * sequences)
            ratio = None if setting.smoke else ours["bf16"]["tokens_per_second"] / one["llmc"]["tokens_per_second"]
            one.update(gnomon=ours, ours_over_theirs=ratio)
        except frame.Failed as error:
            errors.append(f"{size}: {error}")


def torch(setting, budget, found):
    """PyTorch with torch.compile at Qwen2.5 1.5B: BF16, and FP8 linears on torch._scaled_mm; ours beside it."""
    if "torch" not in setting.facts["versions"]:
        raise frame.Skipped(f"{setting.given.python} has no torch")
    script = frame.ROOT / "lab/peers/qwen_torch.py"
    errors = []
    found["errors"] = errors
    try:
        if "gnomon" not in found:
            found["gnomon"] = speed.one_step_with(setting, budget, "qwen2.5-1.5b", 1024, 8, step_tokens=8 * 1024)
    except frame.Failed as error:
        errors.append(f"gnomon: {error}")
    for precision in ("bf16", "fp8"):
        if precision in found:
            continue
        command = [setting.given.python, script, "--precision", precision, "--device", setting.device]
        if setting.smoke:
            command += ["--model", "tiny", "--sequence", "32", "--sequences", "2", "--steps", "2", "--no-compile"]
        try:
            found[precision] = frame.run_json(setting, command, budget)
        except frame.Failed as error:
            errors.append(f"{precision}: {error}")
    theirs = [precision for precision in ("bf16", "fp8") if precision in found]
    if not theirs:
        raise frame.Failed("; ".join(errors))
    for precision in theirs if "gnomon" in found else []:
        ours = found["gnomon"][precision]["tokens_per_second"]
        found[precision]["ours_over_theirs"] = ours / found[precision]["tokens_per_second"]
