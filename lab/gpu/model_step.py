"""The operations of one training step as the engine runs them (trainer/engine/model*.cc, linear.cc; kernels/cuda/backend.cc):
one device, recipe `current` in FP8. Bytes are of what must come from memory and go there."""

import collections
import dataclasses
import math

from . import model_machine

Operation = model_machine.Operation
BF16, FP32, CODE = 2, 4, 1
# bench_models.cc.
Model = collections.namedtuple("Model", "layers width heads kv_heads ffn vocabulary tied")
MODELS = {"qwen2.5-0.5b": Model(24, 896, 14, 2, 4864, 151936, True), "qwen2.5-1.5b": Model(28, 1536, 12, 2, 8960, 151936, True),
          "qwen2.5-3b": Model(36, 2048, 16, 2, 11008, 151936, True), "qwen2.5-7b": Model(28, 3584, 28, 4, 18944, 152064, False)}
PARTS = ("fprop", "dgrad", "wgrad", "lm_head", "attention", "casts", "norms", "SwiGLU", "rotation and biases",
         "input-gradient sums", "cross-entropy", "embedding", "AdamW", "host")
LOGITS_MOST = 1 << 29  # memory_choice.cc
ROWS_MULTIPLE = 128
LOGITS_KEPT = (227 * 1024 - 2048) // 2  # loss.cu, kernel.h: of a row, in shared memory
MATRIX_MOST = 1 << 30  # cudnn_attention.h
BIAS_ROWS = 256        # elementwise.cu: rows that one thread sums up
MOMENT_BYTES = {"fp32": 16, "bf16": 8, "fp8": 4.0625}  # both, read and written; FP8 has a scale for 128
RADIX_LAUNCHES = 7     # sort.cu: the places and the library's passes; assumed


@dataclasses.dataclass(frozen=True)
class Setup:
    """How a step is run. `joined`: q, k, v as one product in FP8 too, and gate, up; the engine has them apart."""
    sequence: int = 1024
    sequences: int = 16
    accumulation: int = 4
    recompute: str = "none"
    moments: str = "fp32"
    fp8: bool = False
    fast: bool = True      # accumulate = "hopper"
    head_fp8: bool = True
    joined: bool = False

    def tokens(self):
        return self.sequence * self.sequences

    def tokens_of_step(self):
        return self.tokens() * self.accumulation


def usual_setup(device, model):
    """What speed.py ends with on this device at sequences of 1,024, as docs/benchmarks.md expects."""
    if model == "qwen2.5-7b":
        return Setup(sequences=8, accumulation=8, recompute="swiglu", moments="fp8")
    if model == "qwen2.5-3b" and device == "h100":
        return Setup(sequences=4, accumulation=16, recompute="swiglu")
    return Setup()


def widths(model):
    """(of queries, of keys)."""
    head = model.width // model.heads
    return model.heads * head, model.kv_heads * head


def parameters(model):
    attention, kv = widths(model)
    layer = model.width * (2 * attention + 2 * kv + 3 * model.ffn) + 2 * model.width + attention + 2 * kv
    return model.layers * layer + model.width + model.vocabulary * model.width * (1 if model.tied else 2)


def counted_flops(model, setup):
    """As step_flops() of bench_step.cc counts: no masked half, no score made twice."""
    attention, kv = widths(model)
    weights = model.layers * model.width * (2 * attention + 2 * kv + 3 * model.ffn) + model.vocabulary * model.width
    return setup.tokens_of_step() * (6.0 * weights + 6.0 * model.layers * setup.sequence * attention)


def rows_of_logits(model, tokens):
    if tokens * model.vocabulary <= LOGITS_MOST:
        return tokens
    return min(max(LOGITS_MOST // 2 // model.vocabulary // ROWS_MULTIPLE * ROWS_MULTIPLE, ROWS_MULTIPLE), tokens)


# ---- kernels, of `rows` x `columns`; `amaxes`: largest values that it leaves, each with a memory cleared first ----

def moving(name, part, rows, columns, each, launches=1, **more):
    return Operation(part, name, bytes=each * rows * columns, launches=launches, **more)


def norm(rows, width, amaxes=0, added=True):
    return moving("add and RMSNorm", "norms", rows, width, (4 if added else 3) * BF16, 1 + amaxes)


def norm_backward(rows, width, amaxes=0):
    return moving("RMSNorm backward", "norms", rows, width, 4 * BF16, 2 + amaxes)


def swiglu(rows, ffn, amaxes=0):
    return moving("SwiGLU", "SwiGLU", rows, ffn, 3 * BF16, 1 + amaxes)


def swiglu_backward(rows, ffn, amaxes=0):
    return moving("SwiGLU backward", "SwiGLU", rows, ffn, 5 * BF16, 1 + amaxes)


def rotation(rows, columns):
    return moving("rotation", "rotation and biases", rows, columns, 2 * BF16)


def bias(rows, columns):
    return moving("bias", "rotation and biases", rows, columns, 2 * BF16)


def bias_backward(rows, columns):
    least = min(BIAS_ROWS, rows) / model_machine.LOADS_AHEAD * model_machine.LOAD
    return moving("bias backward", "rotation and biases", rows, columns, BF16, 2, least=least)


def amax(rows, columns):
    return moving("amax", "casts", rows, columns, BF16, 2)


def cast(rows, columns):
    """Both ways round, with the choice of the scale."""
    return moving("cast and transpose, one scale", "casts", rows, columns, BF16 + 2 * CODE, 2)


def round_sums(rows, columns):
    return moving("round sums to BF16", "input-gradient sums", rows, columns, FP32 + BF16)


def cross_entropy(rows, vocabulary, amaxes=0):
    again = max(0, vocabulary - LOGITS_KEPT) / vocabulary
    return moving("cross-entropy and its gradient", "cross-entropy", rows, vocabulary, (2 + again) * BF16, 1 + amaxes)


def embedding(rows, width):
    return moving("embedding", "embedding", rows, width, 2 * BF16)


def adamw(elements, moments):
    name = "AdamW" + ("" if moments == "fp32" else f", moments in {moments.upper()}")
    return moving(name, "AdamW", 1, elements, 3 * FP32 + BF16 + MOMENT_BYTES[moments])


def squares(elements):
    return moving("sum of squares", "AdamW", 1, elements, FP32, 2)


# `gnomon bench kernels` prints a kernel's shape as ROWSxCOLUMNS, or as a number.
KERNELS = {"add and RMSNorm": norm, "RMSNorm backward": norm_backward, "SwiGLU": swiglu, "SwiGLU backward": swiglu_backward,
           "rotation": rotation, "bias": bias, "bias backward": bias_backward, "amax": amax,
           "cast and transpose, one scale": cast, "round sums to BF16": round_sums,
           "cross-entropy and its gradient": cross_entropy, "embedding": embedding,
           "AdamW": lambda count: adamw(count, "fp32"), "AdamW, moments in BF16": lambda count: adamw(count, "bf16"),
           "AdamW, moments in FP8": lambda count: adamw(count, "fp8"), "sum of squares": squares}


# ---- products ----

def product(part, name, shape, kind, result):
    """`result`: bytes for each of its elements, those that it is added to included."""
    m, n, k = shape
    written = float(result) * m * n
    element = BF16 if kind == "bf16" else CODE
    return Operation(part, name, bytes=element * (m * k + n * k) + written, flops=2.0 * m * n * k, kind=kind, shape=shape,
                     written=written)


def kind_of(setup, gemm, fp8):
    if not fp8:
        return "bf16"
    return "fast" if gemm == "fprop" and setup.fast else "fp8"


def times(operations, count):
    return [dataclasses.replace(it, count=it.count * count) for it in operations]


def groups_of(model):
    """Of a layer: (name, inputs, outputs of each site)."""
    attention, kv = widths(model)
    return (("qkv", model.width, (attention, kv, kv)), ("o_proj", attention, (model.width,)),
            ("gate_up", model.width, (model.ffn, model.ffn)), ("down_proj", model.ffn, (model.width,)))


def sites_of(group, setup):
    """Those that have products of their own."""
    return group[2] if setup.fp8 and not setup.joined else (sum(group[2]),)


def fprop(group, tokens, setup):
    kind = kind_of(setup, "fprop", setup.fp8)
    return [product("fprop", group[0], (tokens, out, group[1]), kind, BF16) for out in sites_of(group, setup)]


def dgrad(group, tokens, setup):
    """Sites apart add up in FP32, and the sum is rounded."""
    sites, kind = sites_of(group, setup), kind_of(setup, "dgrad", setup.fp8)
    if len(sites) == 1:
        return [product("dgrad", group[0], (tokens, group[1], sites[0]), kind, BF16)]
    found = [product("dgrad", group[0], (tokens, group[1], out), kind, FP32 if i == 0 else 2 * FP32)
             for i, out in enumerate(sites)]
    return [*found, round_sums(tokens, group[1])]


def wgrad(group, tokens, setup):
    """Of all micro-batches: the first overwrites, the others add."""
    found = []
    kind = kind_of(setup, "wgrad", setup.fp8)
    for result, count in ((FP32, 1), (2 * FP32, setup.accumulation - 1)):
        found += times([product("wgrad", group[0], (out, group[1], tokens), kind, result)
                        for out in sites_of(group, setup)], count)
    return found


def head(model, setup):
    """lm_head and the loss, some rows at a time."""
    tokens, rows, width, vocabulary = setup.tokens(), rows_of_logits(model, setup.tokens()), model.width, model.vocabulary
    fp8, micro = setup.fp8 and setup.head_fp8, setup.accumulation
    pieces = [min(rows, tokens - first) for first in range(0, tokens, rows)]
    found = []
    for i, count in enumerate(pieces):
        found += times([product("lm_head", "fprop", (count, vocabulary, width), kind_of(setup, "fprop", fp8), BF16),
                        cross_entropy(count, vocabulary, 1 if fp8 else 0),
                        product("lm_head", "dgrad", (count, width, vocabulary), kind_of(setup, "dgrad", fp8), BF16)], micro)
        shape, kind = (vocabulary, width, count), kind_of(setup, "wgrad", fp8)
        overwrites = 1 if i == 0 else 0
        found += times([product("lm_head", "wgrad", shape, kind, FP32)], overwrites)
        found += times([product("lm_head", "wgrad", shape, kind, 2 * FP32)], micro - overwrites)
        if fp8:
            # With all rows at once the norm leaves the largest value.
            found += times(([amax(count, width)] if len(pieces) > 1 else []) + [cast(count, width), cast(count, vocabulary)],
                           micro)
    if fp8:
        found += [amax(vocabulary, width), cast(vocabulary, width)]
    return found


# ---- a layer, of one micro-batch ----

def attention_forward(model, setup):
    (width, kv), n = widths(model), setup.tokens()
    flops = 2.0 * n * setup.sequence * width
    return Operation("attention", "forward", bytes=n * (2 * width + 2 * kv) * BF16 + n * model.heads * FP32, flops=flops,
                     kind="forward", shape=(setup.sequence, width // model.heads))


def attention_backward(model, setup):
    """Deterministic (decision 18): dS goes to memory and is multiplied from there; keys' gradients of each head are added up."""
    (width, kv), n, tokens = widths(model), setup.tokens(), setup.sequence
    shape, one = (tokens, width // model.heads), 1.0 * n * tokens * width
    scores = n * tokens * model.heads * BF16 / 2  # below the diagonal
    together = max(1, MATRIX_MOST // (model.heads * tokens * tokens * BF16))
    runs = math.ceil(setup.sequences / together)
    return [
        Operation("attention", "delta", bytes=2 * n * width * BF16, launches=runs),
        Operation("attention", "scores, dv, dk", bytes=n * (4 * width + 2 * kv) * BF16 + scores, flops=4 * one,
                  launches=runs, kind="backward", shape=shape),
        Operation("attention", "dq", bytes=scores + n * (width + kv) * BF16, flops=one, launches=runs, kind="backward",
                  shape=shape),
        Operation("attention", "sums of dk, dv", bytes=2 * n * (width + kv) * BF16, launches=2 * runs),
    ]


def layer_forward(model, setup, again=False):
    """`again`: what a block computed again runs, down_proj apart."""
    (width, kv), n, fp8 = widths(model), setup.tokens(), 1 if setup.fp8 else 0
    qkv, o, gate_up, down = groups_of(model)
    found = [norm(n, model.width, fp8, added=not again), *fprop(qkv, n, setup), bias(n, width), bias(n, kv), bias(n, kv),
             rotation(n, width + kv), attention_forward(model, setup), *fprop(o, n, setup), norm(n, model.width, fp8),
             *fprop(gate_up, n, setup), swiglu(n, model.ffn, fp8)]
    if not again:
        found += fprop(down, n, setup)
    if fp8:  # attention leaves no largest value
        found += [cast(n, model.width), amax(n, width), cast(n, width), cast(n, model.width)]
        found += [] if again else [cast(n, model.ffn)]
    return found


def layer_backward(model, setup):
    """But wgrad."""
    (width, kv), n, fp8 = widths(model), setup.tokens(), 1 if setup.fp8 else 0
    qkv, o, gate_up, down = groups_of(model)
    found = [*dgrad(down, n, setup), swiglu_backward(n, model.ffn, 2 * fp8), *dgrad(gate_up, n, setup),
             norm_backward(n, model.width, fp8), *dgrad(o, n, setup), *attention_backward(model, setup), rotation(n, width),
             rotation(n, kv), bias_backward(n, width), bias_backward(n, kv), bias_backward(n, kv), *dgrad(qkv, n, setup),
             norm_backward(n, model.width, fp8)]
    if fp8:
        found += [cast(n, model.width), cast(n, model.ffn), cast(n, model.ffn), cast(n, model.width)]
        found += [one(n, columns) for columns in (width, kv, kv) for one in (amax, cast)]
    return found


def computed_again(model, setup):
    """Of a layer that is not the last. What is kept of SwiGLU is rounded anew for wgrad."""
    if setup.recompute == "none":
        return []
    rounded = [cast(setup.tokens(), model.ffn)] if setup.fp8 else []
    if setup.recompute == "swiglu":
        return [swiglu(setup.tokens(), model.ffn, 1 if setup.fp8 else 0), *rounded]
    return [*layer_forward(model, setup, again=True), *rounded]


def weight_casts(model, setup):
    """Once a step, for every matrix of a layer."""
    if not setup.fp8:
        return []
    return [one(out, group[1]) for group in groups_of(model) for out in group[2] for one in (amax, cast)]


def ends(model, setup):
    """Embedding, final norm and what is done once a step."""
    n, width, count = setup.tokens(), model.width, parameters(model)
    fp8 = 1 if setup.fp8 else 0
    one_pass = [embedding(n, width), norm(n, width), moving("zeros", "norms", n, width, BF16), norm_backward(n, width, fp8),
                moving("embedding backward", "embedding", n, width, BF16 + 2 * FP32, 1 + RADIX_LAUNCHES),
                Operation("host", "losses", launches=0, waits=True)]
    once = [adamw(count, setup.moments), squares(count), moving("hash", "AdamW", 1, count, BF16, 2),
            *times([Operation("host", "norm, hash", launches=0, waits=True)], 2)]
    if not model.tied:
        once.append(moving("zeros", "embedding", model.vocabulary, width, FP32))
    return times(one_pass, setup.accumulation) + once


def operations(model, setup):
    """Of one step."""
    of_layer = times(layer_forward(model, setup) + layer_backward(model, setup), setup.accumulation)
    for group in groups_of(model):
        of_layer += wgrad(group, setup.tokens(), setup)
    of_layer += weight_casts(model, setup)
    again = times(computed_again(model, setup), setup.accumulation * (model.layers - 1))
    return times(of_layer, model.layers) + again + head(model, setup) + ends(model, setup)
