"""Which part belongs to which call, in order of worth, with its seconds. The limits of a call add up to 540 at most: a call
may be killed after ten minutes, and the machine has to say what it is first."""

import collections

from . import checks, gtests, peers, runs, speed

# `limit`: the most that it may take, twice what an H100 took where it is known; `least`: it is not started with less.
Part = collections.namedtuple("Part", "name call limit least run")

BUDGET = 540
PARTS = [
    Part("facts", "1", 20, 5, checks.facts),
    Part("kernels", "1", 30, 10, gtests.kernels),
    Part("engine", "1", 180, 20, gtests.engine),
    Part("attention", "1", 60, 15, checks.attention),
    Part("accumulation", "1", 40, 15, checks.accumulation),
    Part("racecheck", "1", 80, 20, gtests.racecheck),
    Part("memcheck", "1", 80, 20, gtests.memcheck),

    Part("gemm", "2", 140, 15, speed.gemm),
    Part("bandwidth", "2", 40, 15, speed.bandwidth),
    Part("steps-small", "2", 200, 30, speed.steps_small),
    Part("steps-3b", "2", 160, 30, speed.steps_3b),

    Part("loop", "3", 200, 90, runs.loop),
    Part("steps-7b", "3", 150, 30, speed.steps_7b),
    Part("torch", "3", 150, 130, peers.torch),

    Part("convergence", "later", 200, 90, runs.convergence),
    Part("overheads", "later", 130, 60, runs.overheads),
    Part("block", "later", 110, 30, speed.block),
    Part("llmc", "later", 100, 30, peers.llmc),
]
CALLS = list(dict.fromkeys(part.call for part in PARTS))
NAMES = [part.name for part in PARTS]


def chosen(call, names):
    """The parts of a call, or those named, in the plan's order; all where neither is given."""
    return [part for part in PARTS if (part.call == call if call else not names or part.name in names)]
