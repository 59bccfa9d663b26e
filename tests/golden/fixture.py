"""What the scripts here that use transformers share: small models with random weights and a folder to work in."""

import contextlib
import pathlib
import tempfile

import torch
import transformers


def llama3_rope(**other):
    """Rotation as of Llama 3.1. Unless `other` says so: of six pairs, one is fast, one between, four slow."""
    return {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    } | other


def random_model(config_class, *, seed, width, **settings):
    """A causal model in FP32: two layers, four query heads over two key heads, half as much again inside the MLP."""
    torch.manual_seed(seed)
    config = config_class(
        hidden_size=width,
        intermediate_size=width * 3 // 2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **settings,
    )
    config._attn_implementation = "eager"
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@contextlib.contextmanager
def work_folder(kept=None):
    """`kept`, or else a temporary folder; torch computes with one thread."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        yield pathlib.Path(kept or temporary)
