"""A small language model in plain Python, with GEMMs whose operands can be rounded to FP8.

Tokens follow a seeded Markov chain, so the loss has somewhere to go. Weights of a BF16 run are
Python's floats: what is emulated is the rounding of GEMM operands, which a plan is about.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable
from typing import Any

VOCABULARY = 16
WIDTH = 8
TOKENS = 48
LAYERS = 2
SITES = [f"model.layers.{i}.mlp.up_proj" for i in range(LAYERS)] + ["lm_head"]
E4M3_MAX = 448.0

Matrix = list[list[float]]
Precision = Callable[[str, str], bool]  # of a site and a GEMM: whether it runs in FP8


def bf16(site: str, gemm: str) -> bool:
    return False


def round_fp8(matrix: Matrix, scale_error: float = 1.0) -> Matrix:
    """E4M3 with one scale for the tensor; what is too large saturates."""
    amax = max((abs(value) for row in matrix for value in row), default=0.0)
    if amax == 0.0 or not math.isfinite(amax):
        return matrix
    scale = E4M3_MAX / amax * scale_error
    return [[_round(value * scale) / scale for value in row] for row in matrix]


def _round(value: float) -> float:
    if value == 0.0:
        return 0.0
    if abs(value) >= E4M3_MAX:
        return math.copysign(E4M3_MAX, value)
    exponent = max(math.frexp(value)[1] - 1, -6)
    step = 2.0 ** (exponent - 3)
    return round(value / step) * step


def matmul(a: Matrix, b: Matrix) -> Matrix:
    columns = list(zip(*b, strict=True))
    return [[sum(map(float.__mul__, row, column)) for column in columns] for row in a]


def added(a: Matrix, b: Matrix) -> Matrix:
    return [list(map(float.__add__, x, y)) for x, y in zip(a, b, strict=True)]


def transposed(a: Matrix) -> Matrix:
    return [list(column) for column in zip(*a, strict=True)]


class Model:
    """fault: (site, first step, step behind the last): its FP8 scales are off by then, so that
    values saturate. A plan with the site in BF16 has no part of it.
    """

    def __init__(self, seed: int = 1) -> None:
        random_numbers = random.Random(seed)

        def matrix(rows: int, columns: int) -> Matrix:
            return [[random_numbers.gauss(0, 0.3) for _ in range(columns)] for _ in range(rows)]

        self.embedding = matrix(VOCABULARY, WIDTH)
        self.weights = {
            f"model.layers.{i}.mlp.up_proj": matrix(WIDTH, WIDTH) for i in range(LAYERS)
        }
        self.weights["lm_head"] = matrix(WIDTH, VOCABULARY)
        self.is_fp8: Precision = bf16
        self.sites = SITES
        self.step = 0
        self.fault = ("", 0, 0)

    def _gemm(self, site: str, gemm: str, a: Matrix, b: Matrix) -> Matrix:
        if not self.is_fp8(site, gemm):
            return matmul(a, b)
        faulty = site == self.fault[0] and self.fault[1] <= self.step + 1 < self.fault[2]
        error = 64.0 if faulty else 1.0
        return matmul(round_fp8(a, error), round_fp8(b, error))

    def forward(self, tokens: list[int]) -> tuple[float, dict[str, Any]]:
        """Mean loss of each token but the first, and what the backward pass needs."""
        hidden = [list(self.embedding[token]) for token in tokens[:-1]]
        kept: dict[str, Any] = {}
        for i in range(LAYERS):
            site = f"model.layers.{i}.mlp.up_proj"
            kept[site] = hidden
            out = self._gemm(site, "fprop", hidden, self.weights[site])
            active = [[math.tanh(value) for value in row] for row in out]
            kept[site + ".tanh"] = active
            hidden = added(hidden, active)
        kept["lm_head"] = hidden
        logits = self._gemm("lm_head", "fprop", hidden, self.weights["lm_head"])
        loss = 0.0
        grads = []
        for row, target in zip(logits, tokens[1:], strict=True):
            top = max(row)
            exps = [math.exp(value - top) for value in row]
            total = sum(exps)
            loss += math.log(total) - (row[target] - top)
            grads.append([value / total / len(logits) for value in exps])
            grads[-1][target] -= 1.0 / len(logits)
        kept["logits"] = grads
        return loss / len(logits), kept

    def backward(self, tokens: list[int], kept: dict[str, Any]) -> dict[str, Matrix]:
        """Gradients by site, and that of the embedding."""
        grads: dict[str, Matrix] = {}
        flow = self._through("lm_head", kept["lm_head"], kept["logits"], grads)
        for i in reversed(range(LAYERS)):
            site = f"model.layers.{i}.mlp.up_proj"
            inner = [
                [g * (1 - a * a) for g, a in zip(gs, row, strict=True)]
                for gs, row in zip(flow, kept[site + ".tanh"], strict=True)
            ]
            through = self._through(site, kept[site], inner, grads)
            flow = [
                [x + y for x, y in zip(a, b, strict=True)]
                for a, b in zip(flow, through, strict=True)
            ]
        embedding = [[0.0] * WIDTH for _ in range(VOCABULARY)]
        for token, row in zip(tokens[:-1], flow, strict=True):
            embedding[token] = [x + y for x, y in zip(embedding[token], row, strict=True)]
        grads["embedding"] = embedding
        return grads

    def _through(self, site: str, into: Matrix, out: Matrix, grads: dict[str, Matrix]) -> Matrix:
        grads[site] = self._gemm(site, "wgrad", transposed(into), out)
        return self._gemm(site, "dgrad", out, transposed(self.weights[site]))

    def update(self, grads: dict[str, Matrix], rate: float) -> float:
        """Plain gradient descent with clipping at 1. Returns the norm before clipping."""
        norm = math.sqrt(sum(g * g for matrix in grads.values() for row in matrix for g in row))
        if not math.isfinite(norm):
            self.step += 1
            return norm
        factor = rate * min(1.0, 1.0 / (norm + 1e-9))
        for name, grad in grads.items():
            matrix = self.embedding if name == "embedding" else self.weights[name]
            for row, change in zip(matrix, grad, strict=True):
                for i, value in enumerate(change):
                    row[i] -= factor * value
        self.step += 1
        return norm

    def nudge(self, seed: int, scale: float) -> None:
        """Moves every weight a little, by noise of this seed; 0 leaves them."""
        if seed == 0:
            return
        noise = random.Random(seed)
        for matrix in (self.embedding, *self.weights.values()):
            for row in matrix:
                row[:] = [value * (1 + scale * noise.gauss(0, 1)) for value in row]

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "embedding": self.embedding,
            "weights": self.weights,
            "fault": list(self.fault),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.embedding = state["embedding"]
        self.weights = state["weights"]
        self.fault = (state["fault"][0], state["fault"][1], state["fault"][2])


def get_batch(step: int, seed: int = 7) -> list[int]:
    """The tokens of a step: a pure function, so that a replay sees the same."""
    random_numbers = random.Random(seed * 1_000_003 + step)
    chain = random.Random(seed)
    likely = [chain.randrange(VOCABULARY) for _ in range(VOCABULARY)]
    tokens = [random_numbers.randrange(VOCABULARY)]
    for _ in range(TOKENS):
        follows = random_numbers.random() < 0.7
        tokens.append(likely[tokens[-1]] if follows else random_numbers.randrange(VOCABULARY))
    return tokens


def heldout() -> list[list[int]]:
    return [get_batch(-1 - i) for i in range(8)]


def evaluate(model: Model, precision: Precision = bf16) -> list[float]:
    """The held-out loss of each sequence."""
    before, model.is_fp8 = model.is_fp8, precision
    losses = [model.forward(tokens)[0] for tokens in heldout()]
    model.is_fp8 = before
    return losses


def save(model: Model, path: str) -> None:
    """Complete or not there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(model.state(), file)
    os.replace(path + ".new", path)


def load_into(model: Model, path: str) -> Model:
    with open(path, encoding="utf-8") as file:
        model.load(json.load(file))
    return model
