"""What the demonstration trains: a small Llama of `transformers` on the bytes of real text, in FP8.

Trainer and verifiers make the same job from it; the environment says where the text is
(GNOMON_DEMO_TEXT, one file) and which fault is switched on (GNOMON_DEMO_FAULT: fp8 or none).
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import gnomon
from gnomon.torch import Fault, Job, adopt, make_verifier

STEPS, CHECKPOINT_EVERY, SEED = 480, 10, 1
SEQUENCES, TOKENS, HELDOUT_SEQUENCES = 16, 64, 96
PLAN = gnomon.PrecisionPlan.fp8("current")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Only FP8 feels this: at one layer the quantisation scale of the down-projection's input is off by
# 2^7, so that most values saturate. It begins in the middle of the run and is mended later.
FAULTS = {
    "fp8": (Fault("model.layers.0.mlp.down_proj", 152, 270, "scale_shift", "input", 7),),
    "none": (),
}


def faults() -> tuple[Fault, ...]:
    """The faults that the environment asks for."""
    return FAULTS[os.environ.get("GNOMON_DEMO_FAULT", "fp8")]


def make_model() -> LlamaForCausalLM:
    """A Llama of two layers over bytes, with weights from the seed."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=TOKENS,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).to(DEVICE)


class Text:
    """Bytes of real text: the last 2% are held out, the rest is drawn from."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._bytes = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
        self._split = len(self._bytes) * 98 // 100

    def batch(self, step: int) -> Tensor:
        """The batch of a step, [SEQUENCES, TOKENS + 1]: a pure function of the step."""
        generator = torch.Generator().manual_seed(SEED * 1_000_003 + step)
        last = self._split - TOKENS - 1
        return self._rows(torch.randint(last, (SEQUENCES,), generator=generator))

    def heldout(self) -> Tensor:
        """The same held-out sequences each time, [HELDOUT_SEQUENCES, TOKENS + 1]."""
        between = (len(self._bytes) - self._split - TOKENS - 1) // HELDOUT_SEQUENCES
        return self._rows(self._split + torch.arange(HELDOUT_SEQUENCES) * between)

    def _rows(self, starts: Tensor) -> Tensor:
        return self._bytes[starts[:, None] + torch.arange(TOKENS + 1)].long().to(DEVICE)


def sequence_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """The mean loss of each sequence in nats per token; GEMMs in BF16 where the plan says so."""
    with torch.autocast(DEVICE, torch.bfloat16):
        logits = model(tokens[:, :-1], use_cache=False).logits
    losses = functional.cross_entropy(
        logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    )
    return losses.view(tokens.shape[0], -1).mean(dim=1)


def learning_rate_share(step: int) -> float:
    """Warm-up, then a cosine down to a tenth."""
    if step < 40:
        return (step + 1) / 40
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - 40) / (STEPS - 40))))


def make_job() -> Job:
    """Everything that a step needs. Bits repeat: on a GPU too every kernel sums in one order."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = make_model()
    adopt(model, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_share)
    text = Text(os.environ["GNOMON_DEMO_TEXT"])
    heldout = text.heldout()

    def train_step(tokens: Tensor) -> tuple[Any, Any]:
        optimizer.zero_grad()
        loss = sequence_losses(model, tokens).mean()
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.detach(), norm

    return Job(
        model=model,
        train_step=train_step,
        batch=text.batch,
        evaluate=lambda: sequence_losses(model, heldout),
        heldout_tokens=HELDOUT_SEQUENCES * TOKENS,
        state={"optimizer": optimizer, "scheduler": scheduler},
        faults=faults(),
    )


verifier = make_verifier(make_job, build="demo-pytorch", exact_replay=True)
