"""A small GPT of nanoGPT's kind, and a text whose batches are a function of the step."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, WIDTH, HEADS, LAYERS, BLOCK, BATCH = 64, 64, 4, 2, 32, 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.c_fc, self.c_fc_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns, _ = x.shape
        heads = self.c_attn(self.ln_1(x)).view(rows, columns, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).reshape(rows, columns, WIDTH))
        return x + self.c_fc_proj(functional.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1337)
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, X: Tensor, Y: Tensor, reduction: str = "mean") -> tuple[Tensor, Tensor]:
        x = self.wte(X) + self.wpe(torch.arange(X.shape[1], device=X.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        flat, targets = logits.float().flatten(0, 1), Y.flatten()
        return logits, functional.cross_entropy(flat, targets, reduction=reduction)


def get_batch(split: str, iter_num: int) -> tuple[Tensor, Tensor]:
    """X and Y, [BATCH, BLOCK] each: a function of the step, so that a replay sees the same."""
    seed = iter_num + (1 << 32) * (split == "val")
    generator = torch.Generator().manual_seed(seed)
    jumps = torch.randint(3, (BATCH, BLOCK), generator=generator)
    tokens = torch.randint(VOCABULARY, (BATCH, 1), generator=generator)
    for i in range(BLOCK):
        tokens = torch.cat([tokens, (tokens[:, -1:] * 5 + jumps[:, i : i + 1]) % VOCABULARY], dim=1)
    return tokens[:, :-1].to(DEVICE), tokens[:, 1:].to(DEVICE)


def get_lr(iter_num: int, warmup_iters: int = 20, lr_decay_iters: int = 2000) -> float:
    """Warm-up, then a cosine down to a tenth of 1e-3."""
    if iter_num < warmup_iters:
        return 1e-3 * (iter_num + 1) / warmup_iters
    share = min(1.0, (iter_num - warmup_iters) / (lr_decay_iters - warmup_iters))
    return 1e-4 + 0.5 * 9e-4 * (1 + math.cos(math.pi * share))


@torch.no_grad()
def sequence_losses(model: nn.Module, batches: int = 2) -> Tensor:
    """The held-out loss of each sequence in nats per token."""
    model.eval()
    losses = []
    for i in range(batches):
        X, Y = get_batch("val", i)
        with torch.autocast(DEVICE, torch.bfloat16):
            _, loss = model(X, Y, reduction="none")
        losses.append(loss.view(BATCH, BLOCK).mean(dim=1))
    model.train()
    return torch.cat(losses)
