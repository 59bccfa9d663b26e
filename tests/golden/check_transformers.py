#!/usr/bin/env python3
"""Checks that checkpoints of gnomon-trainer are models for `transformers`.

Trains a small Llama (grouped keys, untied) and a small Qwen2 (tied) for a few steps in BF16 and in FP32, then loads
each last checkpoint with AutoModelForCausalLM: nothing may be missing or left over, the loss on the run's held-out
tokens must be the trainer's own within the tolerance of its element type, and it must generate tokens. The same for
what `gnomon checkpoint export` writes, sharded, and for a run that begins with model.from; and for runs that begin with a
model as of Llama 3.1 (scaled rotation, wide heads), which only model.from can describe.

    tests/golden/check_transformers.py [--bin build/release/bin]
"""

import argparse
import json
import pathlib
import subprocess
import sys

import torch
import transformers

from fixture import llama3_rope, random_model, work_folder

STEPS = 12
TOKENS = 64
SEQUENCES = 4
# Relative, for the mean loss: both sides compute in the checkpoint's own element type.
TOLERANCE = {"bf16": 5e-3, "fp32": 1e-5}

CONFIG = """
[run]
name = "{name}"
dir = "{name}"
steps = {steps}
threads = 1
[model]
{model}
compute = "{compute}"
[data]
dir = "data"
[eval]
sequences = {sequences}
[batch]
sequences = 4
tokens = {tokens}
[optimizer]
warmup_steps = 2
[precision]
recipe = "bf16"
"""
SHAPE = """layers = 2
width = 64
heads = 4
kv_heads = 2
ffn = 96
context = 128
init_std = 0.1
{more}
tie_embeddings = {tied}
rope_theta = {theta}"""


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def train(programs, root, name, compute, model):
    config = root / f"{name}.toml"
    config.write_text(
        CONFIG.format(name=name, steps=STEPS, model=model, compute=compute, tokens=TOKENS, sequences=SEQUENCES)
    )
    run(programs / "gnomon-trainer", "--config", config, "--log-level", "warning")
    checkpoints = sorted((root / name / "checkpoints").glob("attempt-*/step-*"))
    assert checkpoints[-1].name.endswith(f"{STEPS:08}"), checkpoints
    return checkpoints


def load(directory):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype="auto", output_loading_info=True, attn_implementation="eager"
    )
    wrong = {key: value for key, value in report.items() if value}
    assert not wrong, f"{directory}: {wrong}"
    return model.eval()


def heldout_batch(root):
    """The first held-out sequences, as the trainer's evaluation takes them: sequence i from token i * TOKENS on."""
    shard = (root / "data" / "heldout_000000.bin").read_bytes()
    ids = torch.frombuffer(bytearray(shard[1024:]), dtype=torch.uint16).long()
    return torch.stack([ids[i * TOKENS : (i + 1) * TOKENS + 1] for i in range(SEQUENCES)])


def heldout_loss(programs, checkpoint):
    """The engine's own loss on that batch."""
    text = run(
        programs / "gnomon", "replay", "--checkpoint", checkpoint, "--steps", 1, "--arm", "bf16", "--evaluate", "--json"
    )
    return json.loads(text)["start_loss_bf16"]


def loss_of(model, batch):
    with torch.no_grad():
        logits = model(input_ids=batch[:, :-1]).logits.float()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))


def generate(model, batch):
    made = model.generate(batch[:1, :8], max_new_tokens=16, do_sample=False)
    assert made.shape == (1, 24), made.shape
    assert torch.equal(made[0, :8], batch[0, :8]) and int(made.max()) < model.config.vocab_size
    # The first new token is the likeliest one of a plain pass.
    with torch.no_grad():
        assert int(made[0, 8]) == int(model(input_ids=batch[:1, :8]).logits[0, -1].argmax())


def check(name, directory, batch, expected, compute):
    model = load(directory)
    loss = loss_of(model, batch)
    error = abs(loss / expected - 1)
    print(f"{name}: {model.config.model_type}, {model.dtype}: loss {loss:.6f}, ours {expected:.6f}, relative {error:.1e}")
    assert error <= TOLERANCE[compute], f"{name}: relative difference {error:.3g}"
    generate(model, batch)


def save_llama31(directory):
    model = random_model(
        transformers.LlamaConfig,
        seed=1,
        width=64,
        head_dim=24,
        vocab_size=272,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,  # Llama's own would end what is generated
        eos_token_id=None,
        rope_parameters=llama3_rope(rope_theta=500000.0, original_max_position_embeddings=64),
    )
    model.save_pretrained(directory)


def check_llama31(programs, root, batch):
    saved = root / "llama31"
    save_llama31(saved)
    for compute in ("bf16", "fp32"):
        checkpoints = train(programs, root, f"llama31-{compute}", compute, f'from = "{saved}"')
        if compute == "fp32":
            check("llama31, step 0", saved, batch, heldout_loss(programs, checkpoints[0]), compute)
        check(f"llama31-{compute}", checkpoints[-1], batch, heldout_loss(programs, checkpoints[-1]), compute)
    export = root / "llama31-export"
    run(programs / "gnomon", "checkpoint", "export", checkpoints[-1], "--out", export)
    assert load(export).config.rope_parameters["rope_type"] == "llama3"
    check("llama31, exported", export, batch, heldout_loss(programs, checkpoints[-1]), "fp32")


def write_text(root):
    (root / "text").mkdir()
    for i in range(40):
        words = " ".join(f"{j} and {j * i % 97} make {j + j * i % 97};" for j in range(1, 60))
        (root / "text" / f"{i:03}.txt").write_text(f"Sums of {i}\n{words}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin", type=pathlib.Path, help="where the programs are")
    programs = parser.parse_args().bin.resolve()
    with work_folder() as root:
        write_text(root)
        run(programs / "gnomon", "data", "prepare", "--input", root / "text", "--out", root / "data", "--heldout", 0.2)
        batch = heldout_batch(root)
        for kind, more, tied, theta in (
            ("llama", "", "false", "10000"),
            ("qwen2", "qkv_bias = true", "true", "1000000"),
            ("qwen3", "qk_norm = true\nhead_dim = 32", "true", "1000000"),
        ):
            shape = SHAPE.format(more=more, tied=tied, theta=theta)
            for compute in ("bf16", "fp32"):
                name = f"{kind}-{compute}"
                checkpoint = train(programs, root, name, compute, shape)[-1]
                expected = heldout_loss(programs, checkpoint)
                check(name, checkpoint, batch, expected, compute)
            export = root / f"{kind}-export"
            run(programs / "gnomon", "checkpoint", "export", checkpoint, "--out", export, "--max-shard-size", "100kB")
            assert len(list(export.glob("model-0000*-of-*.safetensors"))) > 1
            check(f"{kind}, exported in shards", export, batch, expected, "fp32")
            # Saved once more by transformers, and a run that begins there.
            saved = root / f"{kind}-saved"
            load(export).save_pretrained(saved, max_shard_size="100KB")
            first = train(programs, root, f"{kind}-from", "fp32", f'from = "{saved}"')[0]
            again = heldout_loss(programs, first)
            print(f"{kind}: step 0 from what transformers saved: loss {again:.6f}, before {expected:.6f}")
            assert first.name.endswith("00000000") and again == expected, (first, again, expected)
        check_llama31(programs, root, batch)


if __name__ == "__main__":
    main()
