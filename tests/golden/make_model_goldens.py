#!/usr/bin/env python3
"""Makes the golden values that tests/engine/hf_golden_test.cc compares the engine with.

A small Llama (grouped keys, untied), one as of 3.1 (scaled rotation, heads wider than width / heads), a small Qwen2
(biases on q, k, v; tied) and a small Qwen3 (norms of the heads of q and k; wider heads; tied) from `transformers`,
randomly initialised and saved as it saves them, and for one batch of tokens their logits, loss and every gradient, in
FP32 and in BF16; the losses of ten steps of AdamW on that batch in FP32, and the logits after them; and the rotation
frequencies of configurations that are in use. Needs torch, transformers and safetensors; nothing else in this repository does.

    tests/golden/make_model_goldens.py            writes beside this script
    tests/golden/make_model_goldens.py --check    compares what is there with what transformers gives now
"""

import argparse
import copy
import pathlib
import sys

import safetensors
import safetensors.torch
import torch
import transformers

from fixture import llama3_rope, random_model, work_folder

SEQUENCES, TOKENS = 3, 24
STEPS = 10
# Wide enough that attention is far from uniform and BF16's rounding far from drowning.
INITIALIZER_RANGE = 0.12
VOCABULARY = 61
COMMON = dict(
    width=32,
    vocab_size=VOCABULARY,
    max_position_embeddings=64,
    initializer_range=INITIALIZER_RANGE,
    bos_token_id=1,
    eos_token_id=2,
)
# name: head_dim and rope_parameters. Llama 3.1 8B, 3.2 1B; a stretched Llama 2.
ROPES = {
    "llama31": (128, llama3_rope(rope_theta=500000.0, original_max_position_embeddings=8192)),
    "llama32": (64, llama3_rope(rope_theta=500000.0, factor=32.0, original_max_position_embeddings=8192)),
    "linear": (128, dict(rope_type="linear", rope_theta=10000.0, factor=2.5)),
    "plain": (96, dict(rope_type="default", rope_theta=1000000.0)),
}


def rope_frequencies():
    """One line for each: name and inverse frequencies, as transformers computes them in FP32."""
    lines = []
    for name, (head_dim, parameters) in ROPES.items():
        config = transformers.LlamaConfig(
            hidden_size=head_dim * 4,
            num_attention_heads=4,
            head_dim=head_dim,
            max_position_embeddings=131072,
            rope_parameters=dict(parameters),
        )
        rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        assert rotary.attention_scaling == 1.0
        lines.append(" ".join([name] + [repr(float(value)) for value in rotary.inv_freq]))
    return "\n".join(lines) + "\n"


# kind: its configuration's class, what else it is made with, and its seed.
MODELS = {
    "llama": (
        transformers.LlamaConfig,
        dict(rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, seed=11),
    ),
    "llama3": (
        transformers.LlamaConfig,
        dict(head_dim=12, rms_norm_eps=1e-5, rope_parameters=llama3_rope(), tie_word_embeddings=True, seed=13),
    ),
    "qwen2": (
        transformers.Qwen2Config,
        dict(rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, seed=12),
    ),
    "qwen3": (
        transformers.Qwen3Config,
        dict(head_dim=16, rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True, seed=14),
    ),
}


def build(kind):
    config_class, settings = MODELS[kind]
    model = random_model(config_class, **COMMON, **settings)
    with torch.no_grad():  # transformers starts norms at 1 and biases at 0, which would hide mistakes
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.add_(0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.5 * torch.randn_like(parameter))
    return model.eval()


def results(model, tokens, prefix):
    """Logits [S, T, V], mean loss in nats and the gradients of that mean."""
    model.zero_grad()
    logits = model(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(
        logits.float().flatten(0, 1), tokens[:, 1:].flatten()
    )
    loss.backward()
    found = {f"{prefix}.logits": logits.detach().clone(), f"{prefix}.loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        found[f"{prefix}.gradient.{name}"] = parameter.grad.clone()
    return found


def adamw(model, tokens):
    """The losses of ten steps, each before its update, and the logits after the last one. Matrices decay alone."""
    model = copy.deepcopy(model)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=matrices, weight_decay=0.1), dict(params=vectors, weight_decay=0.0)],
        lr=1e-3,
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    losses = []
    for _ in range(STEPS):
        found = results(model, tokens, "step")
        losses.append(found["step.loss"])
        optimizer.step()
    return {"adamw.losses": torch.cat(losses), "adamw.logits": results(model, tokens, "last")["last.logits"]}


def save(tensors, path):
    safetensors.torch.save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()},
        path,
        metadata={
            "made_by": "tests/golden/make_model_goldens.py",
            "torch": torch.__version__.split("+")[0],
            "transformers": transformers.__version__,
        },
    )


def make(kind, root):
    model = build(kind)
    directory = root / kind
    # Small shards, so that one of the two directories has an index.
    model.save_pretrained(directory, max_shard_size="40KB" if kind == "qwen2" else "5GB")
    (directory / "generation_config.json").unlink(missing_ok=True)
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, TOKENS + 1))
    expected = {"tokens": tokens.to(torch.int64)}
    expected |= results(model, tokens, "fp32")
    save(adamw(model, tokens), root / f"{kind}_adamw.safetensors")
    expected |= results(model.to(torch.bfloat16), tokens, "bf16")
    save(expected, root / f"{kind}_expected.safetensors")


def tensors_of(directory):
    found = {}
    for path in sorted(directory.glob("**/*.safetensors")):
        for name, tensor in safetensors.torch.load_file(path).items():
            found[f"{path.relative_to(directory).parts[0].split('_')[0]}: {name}"] = tensor
    return found


def compare(golden, fresh):
    """Other versions and machines sum in another order: equal up to that."""
    wrong = 0
    old, new = tensors_of(golden), tensors_of(fresh)
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new or old[name].shape != new[name].shape:
            print(f"{name}: only in one of the two, or of another shape")
            wrong += 1
            continue
        a, b = old[name].double(), new[name].double()
        error = float((a - b).norm() / b.norm().clamp_min(1e-30))
        if error > (3e-2 if "bf16" in name else 1e-4 if "adamw" in name else 1e-5):
            print(f"{name}: relative difference {error:.3g}")
            wrong += 1
    print(f"{len(new)} tensors compared, {wrong} differ")
    return wrong == 0 and len(new) > 0


def same_frequencies(golden, fresh):
    """Powers differ in the last bit between machines."""
    old, new = ([line.split() for line in path.read_text().splitlines()] for path in (golden, fresh))
    same = len(old) == len(new) and all(
        a[0] == b[0] and len(a) == len(b) and all(abs(float(x) / float(y) - 1) < 1e-6 for x, y in zip(a[1:], b[1:]))
        for a, b in zip(old, new)
    )
    print(f"frequencies of {len(new)} rotations compared" + ("" if same else ": they differ"))
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing; status 1 when they differ")
    check = parser.parse_args().check
    here = pathlib.Path(__file__).resolve().parent
    with work_folder(kept=None if check else here) as root:
        for kind in MODELS:
            make(kind, root)
        frequencies = root / "rope_frequencies.txt"
        frequencies.write_text(rope_frequencies())
        if check and not (compare(here, root) and same_frequencies(here / frequencies.name, frequencies)):
            sys.exit(1)


if __name__ == "__main__":
    main()
