#!/usr/bin/env python3
"""Times training steps of a Qwen2.5 in PyTorch with torch.compile, in BF16 or with FP8 linears on torch._scaled_mm.

    lab/peers/qwen_torch.py --model qwen2.5-1.5b --precision fp8

FP32 weights, passes in BF16, fused AdamW, clipping of the gradient norm, PyTorch's own attention; q, k and v are one
product, and so are gate and up. The FP8 linears do what our recipe `current` does: one scale for a tensor, from its
largest value; E4M3 forward, E5M2 for gradients; products of all three passes on torch._scaled_mm; lm_head too unless
--head bf16. torch.compile fuses the casts within a block, and within lm_head and its loss. Prints one JSON object.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

MODELS = {  # layers, width, heads, kv heads, ffn, vocabulary, tied
    "qwen2.5-0.5b": (24, 896, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 8960, 151936, True),
    "qwen2.5-3b": (36, 2048, 16, 2, 11008, 151936, True),
    "tiny": (2, 64, 4, 2, 128, 256, True),
}
WARM_UP = 4
LOGITS_MAX = 1 << 29  # at a time, as ours


def rounded(x, dtype):
    """Codes, and what takes them back."""
    largest = torch.finfo(dtype).max
    scale = largest / x.abs().amax().float().clamp(min=1e-30)
    codes = (x.float() * scale).clamp(-largest, largest).to(dtype)
    return codes, (1.0 / scale).reshape(())


def product(a, b, fast):
    """a[m,k]·b[n,k]ᵀ of (codes, inverse scale) each."""
    return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16, use_fast_accum=fast)


class Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        x8, w8 = rounded(x, torch.float8_e4m3fn), rounded(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(*x8, *w8)
        return product(x8, w8, fast=True)

    @staticmethod
    def backward(ctx, dy):
        x, x_scale, w, w_scale = ctx.saved_tensors
        codes, scale = rounded(dy, torch.float8_e5m2)
        dx = product((codes, scale), (w.t().contiguous(), w_scale), fast=False)
        dw = product((codes.t().contiguous(), scale), (x.t().contiguous(), x_scale), fast=False)
        return dx, dw


class Linear(torch.nn.Linear):
    fp8 = False

    def forward(self, x):
        weight = self.weight.to(torch.bfloat16)
        bias = None if self.bias is None else self.bias.to(torch.bfloat16)
        if not self.fp8:
            return F.linear(x, weight, bias)
        y = Fp8Product.apply(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1)
        return y if bias is None else y + bias


def rms_norm(x, weight):
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), 1e-6)


def rotate(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


class Block(torch.nn.Module):
    def __init__(self, width, heads, kv_heads, ffn):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm1 = torch.nn.Parameter(torch.ones(width))
        self.qkv = Linear(width, (heads + 2 * kv_heads) * self.head, bias=True)
        self.out = Linear(width, width, bias=False)
        self.norm2 = torch.nn.Parameter(torch.ones(width))
        self.gate_up = Linear(width, 2 * ffn, bias=False)
        self.down = Linear(ffn, width, bias=False)

    def forward(self, x, cosines, sines):
        batch, tokens, width = x.shape
        parts = self.qkv(rms_norm(x, self.norm1)).view(batch, tokens, -1, self.head).transpose(1, 2)
        q, k, v = parts.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        y = F.scaled_dot_product_attention(rotate(q, cosines, sines), rotate(k, cosines, sines), v, is_causal=True,
                                           enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        gate, up = self.gate_up(rms_norm(x, self.norm2)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Qwen(torch.nn.Module):
    def __init__(self, layers, width, heads, kv_heads, ffn, vocabulary, tied, tokens):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, kv_heads, ffn) for _ in range(layers))
        self.norm = torch.nn.Parameter(torch.ones(width))
        self.head = Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)
        if tied:
            self.head.weight = self.embedding.weight
        half = width // heads // 2
        angles = torch.arange(tokens)[:, None] * 1e6 ** (-torch.arange(half) / half)[None, :]
        self.register_buffer("cosines", angles.cos().bfloat16())
        self.register_buffer("sines", angles.sin().bfloat16())

    def forward(self, tokens, targets):
        x = self.embedding(tokens).bfloat16()
        for block in self.blocks:
            x = block(x, self.cosines, self.sines)
        x = rms_norm(x, self.norm).reshape(-1, x.shape[-1])
        targets = targets.reshape(-1)
        rows = max(16, LOGITS_MAX // self.head.out_features // 16 * 16)
        losses = [self.loss_of(part, wanted) for part, wanted in zip(x.split(rows), targets.split(rows))]
        return torch.stack(losses).sum() / targets.numel()

    def loss_of(self, x, targets):
        return F.cross_entropy(self.head(x).float(), targets, reduction="sum")


def step_times(given, model, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=device == "cuda")
    if not given.no_compile:
        for block in model.blocks:  # one graph for all: the whole model takes minutes to compile
            block.compile()
        model.loss_of = torch.compile(model.loss_of)
    generator = torch.Generator().manual_seed(1)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    vocabulary = model.head.out_features
    seconds = []
    for _ in range(WARM_UP + given.steps):
        shape = (2, given.sequences, given.sequence)
        tokens, targets = torch.randint(vocabulary, shape, generator=generator).to(device)
        wait()
        start = time.perf_counter()
        loss = model(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait()
        seconds.append(time.perf_counter() - start)
    return seconds, loss.item()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", choices=MODELS, default="qwen2.5-1.5b")
    arguments.add_argument("--precision", choices=["bf16", "fp8"], default="bf16")
    arguments.add_argument("--head", choices=["bf16", "fp8"], default="fp8", help="of lm_head where linears are in FP8")
    arguments.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    arguments.add_argument("--sequence", type=int, default=1024, help="tokens of a sequence")
    arguments.add_argument("--sequences", type=int, default=8)
    arguments.add_argument("--steps", type=int, default=10, help="timed")
    arguments.add_argument("--no-compile", action="store_true")
    given = arguments.parse_args()

    torch.manual_seed(1)
    model = Qwen(*MODELS[given.model], given.sequence).to(given.device)
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            module.fp8 = given.precision == "fp8" and (name != "head" or given.head == "fp8")
    seconds, loss = step_times(given, model, given.device)
    step = statistics.median(seconds[WARM_UP:])
    tokens = given.sequences * given.sequence
    print(json.dumps({
        "version": torch.__version__, "model": given.model, "precision": given.precision, "head": given.head,
        "compiled": not given.no_compile, "sequence": given.sequence, "sequences": given.sequences,
        "parameters": sum(p.numel() for p in model.parameters()), "loss": loss, "step_seconds": step,
        "tokens_per_second": tokens / step,
        "memory_peak_bytes": torch.cuda.max_memory_allocated() if given.device == "cuda" else None,
    }))


if __name__ == "__main__":
    main()
