#!/usr/bin/env python3
"""Golden updates of an optimizer by numpy in float64, from its paper's formula. Needs numpy; never needed to build, run
or test: the file it writes is checked in.

  make_optimizer_goldens.py [--out DIR]     writes lion_steps.txt (default: beside this script)
  make_optimizer_goldens.py --check         computes it again and compares; status 1 otherwise

lion_steps.txt: lines of a name and its numbers. `step` has learning rate, β1, β2, weight decay, the gradient's scale and
how many of the first elements decay; `start` the weights; a `gradient` for each step; `master` and `exp_avg` what the
weights and moments are after the last one. Inputs are FP32 values.
"""

import argparse
import pathlib
import sys

import numpy as np

ELEMENTS, STEPS, DECAYED, STILL = 64, 12, 40, 4
LEARNING_RATE, BETA1, BETA2, DECAY, SCALE = (np.float64(np.float32(x)) for x in (0.01, 0.9, 0.99, 0.1, 0.5))


def lion():
    """Chen et al. 2023 (arXiv 2302.06675), algorithm 2. The last STILL of the elements that decay, and of those that
    do not, never have a gradient."""
    random = np.random.RandomState(11)
    start = random.standard_normal(ELEMENTS).astype(np.float32)
    gradients = random.standard_normal((STEPS, ELEMENTS)).astype(np.float32)
    gradients[:, DECAYED - STILL:DECAYED] = 0
    gradients[:, -STILL:] = 0
    kept = np.where(np.arange(ELEMENTS) < DECAYED, 1 - LEARNING_RATE * DECAY, 1.0)
    w, m = start.astype(np.float64), np.zeros(ELEMENTS)
    for gradient in gradients.astype(np.float64) * SCALE:
        c = BETA1 * m + (1 - BETA1) * gradient
        if np.any((c != 0) & (np.abs(c) < 1e-6)):
            raise SystemExit("a sign hangs on rounding: take another seed")
        w = w * kept - LEARNING_RATE * np.sign(c)
        m = BETA2 * m + (1 - BETA2) * gradient
    rows = [("step", [LEARNING_RATE, BETA1, BETA2, DECAY, SCALE, DECAYED]), ("start", start)]
    rows += [("gradient", gradient) for gradient in gradients]
    rows += [("master", w), ("exp_avg", m)]
    return "".join(name + " " + " ".join(f"{x:.9g}" for x in values) + "\n" for name, values in rows)


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=here)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text, file = lion(), options.out / "lion_steps.txt"
    if not options.check:
        file.write_text(text)
    elif file.read_text() != text:
        print(f"{file}: not what this script computes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
