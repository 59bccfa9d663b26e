"""What the model on paper takes for granted: the machines' figures, each with its source, and how long an operation takes."""

import dataclasses
import math

# Where a figure is from: "sheet", the maker's data sheet of the SXM part, dense; "H100", bench/results of 25 November 2026;
# "docs", others' measurements; "sources", counted in kernels/cuda; "assumed", nobody measured it for us.
PEAK_BF16 = 989.4e12  # sheet; trainer/engine/bench_step.cc has the same
PEAK_FP8 = 1978.9e12  # sheet
REACHED_BF16 = 0.738  # H100: 730 TFLOP/s, the mean of layers of Llama; 8192^3 itself has 675
REACHED_FP8 = 0.62    # H100: 1,230, rowwise, usual sums
REACHED_FAST = 0.68   # H100: 1,345, rowwise, fast sums
BANDWIDTH = {"h100": 3.35e12, "h200": 4.8e12}  # sheet
REACHED_COPY = 0.896  # H100: 3.0 of 3.35 TB/s, read and written; docs: 4.3 of 4.8
OVER_COPY = 0.95      # H100: what kernels have that are not below
# H100, of a copy. The cast has been rewritten since.
MEASURED = {"RMSNorm backward": 0.94, "rotation": 0.97, "bias backward": 0.80, "cross-entropy and its gradient": 0.70,
            "cast and transpose, one scale": 0.86, "sum of squares": 0.93, "AdamW": 0.99, "AdamW, moments in BF16": 0.92,
            "AdamW, moments in FP8": 0.73, "amax": 1.0, "SwiGLU": 1.0, "SwiGLU backward": 1.0, "bias": 1.0,
            "round sums to BF16": 1.0}
LAUNCH = 3e-6         # assumed: from one kernel's end to the next one's first instruction, started by the host
RECORDED = 1.3e-6     # assumed: the same within a recorded pass
START = 2e-6          # assumed: a product fills its pipeline, and stores its last tile
WAIT = 50e-6          # assumed: the host reads a number and starts what follows
MULTIPROCESSORS = 132          # sheet
LOAD = 0.7e-6         # assumed: until a load from memory is there
LOADS_AHEAD = 4       # assumed: that the compiler has a loop of loads unrolled
# Tiles of a product's result and their speed over the largest's: assumed. The library may not divide a sum (owned.h), so
# that a small result leaves multiprocessors idle.
TILES = ((128, 256, 1.0), (256, 128, 1.0), (128, 128, 0.85), (64, 128, 0.6), (128, 64, 0.6), (64, 64, 0.4))
# Attention, of the FLOPs below the diagonal: rate at endless length, and the length at which it is half of that. H100, of
# lengths from 2,048 to 8,192 with heads of 128; narrower heads have NARROW of it.
ATTENTION = {"forward": (690e12, 800), "backward": (375e12, 500)}
NARROW = 0.7


@dataclasses.dataclass(frozen=True)
class Operation:
    """So many kernels of one kind: what they compute, move and wait for, of one of them."""
    part: str
    name: str           # as `gnomon bench kernels` has it, where it has it
    bytes: float = 0    # read and written
    flops: float = 0
    launches: int = 1
    count: float = 1
    kind: str = ""      # "bf16", "fp8", "fast": a product. "forward", "backward": attention
    shape: tuple = ()   # m, n, k of a product; tokens and head width of attention
    written: float = 0  # of `bytes`, a product's results, and what they are added to
    least: float = 0    # seconds that it waits, however little it moves
    waits: bool = False  # for the host


def tiles_seconds(shape, rate):
    """Of a product whose multiprocessors together reach `rate` (FLOP/s) with the largest tile."""
    m, n, k = shape
    return min(math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / MULTIPROCESSORS) * 2.0 * rows * columns * k
               / (rate / MULTIPROCESSORS * speed) for rows, columns, speed in TILES)


LARGE = (8192, 8192, 8192)  # what rates are given for
UNEVEN = tiles_seconds(LARGE, 1.0) / (2.0 * 8192 ** 3)  # its last tiles leave some multiprocessors idle


@dataclasses.dataclass(frozen=True)
class Machine:
    name: str
    rates: dict         # FLOP/s at 8192^3 by kind
    copy: float         # bytes/s
    over_copy: dict = dataclasses.field(default_factory=lambda: dict(MEASURED))  # by kernel
    recorded: bool = True
    overlaps: bool = True  # a product stores results while it computes others

    def share(self, name):
        return self.over_copy.get(name, OVER_COPY)

    def launch(self):
        return RECORDED if self.recorded else LAUNCH

    def computing(self, it):
        if it.kind in ("bf16", "fp8", "fast"):
            return tiles_seconds(it.shape, self.rates[it.kind] * UNEVEN)
        if it.kind:
            tokens, head = it.shape
            endless, half = ATTENTION[it.kind]
            return it.flops / (endless * tokens / (tokens + half) * (1 if head >= 128 else NARROW))
        return 0.0

    def seconds(self, it):
        """(of one, what bounds it)."""
        computing, memory = self.computing(it), it.bytes / (self.copy * self.share(it.name))
        if it.kind in self.rates and not self.overlaps:
            computing += it.written / (self.copy * OVER_COPY)
        bounds = {"products": computing, "memory": memory, "latency": it.least}
        if it.kind in ATTENTION:
            bounds["attention"] = bounds.pop("products")
        before = it.launches * self.launch() + (START if it.kind in self.rates else 0) + (WAIT if it.waits else 0)
        bound = max(bounds, key=bounds.get)
        busy = bounds[bound]
        return busy + before, bound if busy >= before else "host" if it.waits else "launches"


def machine(name, **changes):
    rates = {"bf16": PEAK_BF16 * REACHED_BF16, "fp8": PEAK_FP8 * REACHED_FP8, "fast": PEAK_FP8 * REACHED_FAST}
    return dataclasses.replace(Machine(name, rates, BANDWIDTH[name] * REACHED_COPY), **changes)
