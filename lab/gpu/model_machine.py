"""What the model on paper takes for granted: the machines' figures, each with its source, and how long an operation takes."""

import dataclasses
import math

# Where a figure is from: "sheet", the maker's data sheet of the SXM part, dense; "seen", lab/results of an H100 on 25 and
# an H200 on 26 November 2026; "sources", counted in kernels/cuda; "assumed", nobody measured it for us.
PEAK_BF16 = 989.4e12  # sheet; lab/bench/step.cc has the same
PEAK_FP8 = 1978.9e12  # sheet
# seen: means over layers of Llama. FP8 has a scale for a row on the H100, one for a tensor on the H200.
REACHED = {"h100": {"bf16": 0.738, "fp8": 0.62, "fast": 0.68}, "h200": {"bf16": 0.72, "fp8": 0.65, "fast": 0.65}}
BANDWIDTH = {"h100": 3.35e12, "h200": 4.8e12}  # sheet
REACHED_COPY = {"h100": 0.896, "h200": 0.86}   # seen: 3.0 and 4.13 TB/s, read and written
OVER_COPY = 0.95      # seen: what kernels have that are not below
# seen, of a copy. The H100's cast has been rewritten since. AdamW with narrow moments and cross-entropy compute as long on
# both, so that they have less of the faster memory.
ALIKE = {"rotation": 0.96, "sum of squares": 0.92, "AdamW": 0.98, "SwiGLU": 1.0, "SwiGLU backward": 1.0,
         "bias": 1.0, "round sums to BF16": 1.0, "bias backward": 0.80}
MEASURED = {
    "h100": ALIKE | {"RMSNorm backward": 0.94, "cross-entropy and its gradient": 0.70, "AdamW, moments in BF16": 0.92,
                     "AdamW, moments in FP8": 0.73, "cast and transpose, one scale": 0.86, "amax": 1.0},
    "h200": ALIKE | {"RMSNorm backward": 0.86, "cross-entropy and its gradient": 0.56, "AdamW, moments in BF16": 0.75,
                     "AdamW, moments in FP8": 0.55, "cast and transpose, one scale": 0.88, "amax": 1.03},
}
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
    over_copy: dict = dataclasses.field(default_factory=dict)  # by kernel
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
    peaks = {"bf16": PEAK_BF16, "fp8": PEAK_FP8, "fast": PEAK_FP8}
    rates = {kind: peaks[kind] * share for kind, share in REACHED[name].items()}
    return dataclasses.replace(Machine(name, rates, BANDWIDTH[name] * REACHED_COPY[name], dict(MEASURED[name])), **changes)
