"""Times training steps of a Llama-style decoder in PyTorch, for a comparison with `gnomon bench step`.

The same shapes as ours: tied embeddings, RMSNorm, rotary positions, SwiGLU, causal attention, AdamW with
FP32 masters, clipping of the gradient norm. Weights are FP32 and the passes run under BF16 autocast. Products
of the same input are one (q k v, gate up), and what the installed version has in faster forms is used: its own
scaled dot product attention, a fused AdamW. Prints one JSON object.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, width, heads, ffn):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.Parameter(torch.ones(width))
        self.qkv = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.norm2 = torch.nn.Parameter(torch.ones(width))
        self.gate_up = torch.nn.Linear(width, 2 * ffn, bias=False)
        self.down = torch.nn.Linear(ffn, width, bias=False)

    def forward(self, x, cosines, sines, mask):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(rms_norm(x, self.norm1)).view(
            batch, tokens, 3, self.heads, width // self.heads
        ).permute(2, 0, 3, 1, 4)
        y = attention(rotate(q, cosines, sines), rotate(k, cosines, sines), v, mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        gate, up = self.gate_up(rms_norm(x, self.norm2)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rms_norm(x, weight):
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, weight.shape, weight.to(x.dtype), 1e-5)
    square = x.float().pow(2).mean(-1, keepdim=True)
    return (x * torch.rsqrt(square + 1e-5) * weight).to(x.dtype)


def rotate(x, cosines, sines):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def attention(q, k, v, mask):
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5) + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


class Llama(torch.nn.Module):
    def __init__(self, layers, width, heads, ffn, vocabulary, tokens):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        torch.nn.init.normal_(self.embedding.weight, std=0.02)
        self.blocks = torch.nn.ModuleList(Block(width, heads, ffn) for _ in range(layers))
        self.norm = torch.nn.Parameter(torch.ones(width))
        half = width // heads // 2
        angles = torch.arange(tokens)[:, None] * 10000.0 ** (-torch.arange(half) / half)[None, :]
        self.register_buffer("cosines", angles.cos().bfloat16())
        self.register_buffer("sines", angles.sin().bfloat16())
        mask = torch.full((tokens, tokens), float("-inf")).triu(1)
        self.register_buffer("mask", mask.bfloat16())

    def forward(self, tokens, targets):
        x = self.embedding(tokens).bfloat16()
        for block in self.blocks:
            x = block(x, self.cosines, self.sines, self.mask)
        logits = F.linear(rms_norm(x, self.norm), self.embedding.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def make_optimizer(parameters):
    options = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        return torch.optim.AdamW(parameters, fused=True, **options), "fused"
    except (TypeError, RuntimeError):
        return torch.optim.AdamW(parameters, foreach=True, **options), "foreach"


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    for name in ("layers", "width", "heads", "ffn", "vocabulary", "sequences", "tokens"):
        arguments.add_argument(f"--{name}", type=int, required=True)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--steps", type=int, default=3, help="timed, after two that are not")
    arguments.add_argument("--compile", action="store_true", help="through torch.compile")
    given = arguments.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(given.threads)
    model = Llama(
        given.layers, given.width, given.heads, given.ffn, given.vocabulary, given.tokens
    )
    parameters = list(model.parameters())
    optimizer, kind = make_optimizer(parameters)
    run = torch.compile(model) if given.compile else model
    seconds, cpu_seconds = [], []
    for _ in range(given.steps + 2):
        shape = (given.sequences, given.tokens)
        tokens = torch.randint(given.vocabulary, shape)
        targets = torch.randint(given.vocabulary, shape)
        start, cpu_start = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = run(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    print(json.dumps({
        "version": torch.__version__,
        "parameters": sum(p.numel() for p in parameters),
        "optimizer": kind,
        "loss": loss.item(),
        "step_seconds": statistics.median(seconds[2:]),
        "step_cpu_seconds": statistics.median(cpu_seconds[2:]),
    }))


if __name__ == "__main__":
    main()
