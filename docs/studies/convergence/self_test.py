"""The comparison on curves whose answer is known."""

import os
import tempfile

import numpy as np

import kept
import summary
from analysis import (
    LOOK,
    LOSS_BLOCK,
    band,
    first_moved,
    gaps,
    last_loss,
    gap_moved,
    moved,
    ranking,
    smoothed,
)

STEPS = 2000
LOOKS = STEPS // LOOK
SETS_IN_AT = 1000  # of the synthetic bad case: its statistic moves here,
LOSS_LATER = 400  # and its loss so many steps later


def record(seed, loss_factor=1.0, jump=None, scale=1.0):
    random = np.random.default_rng(seed)
    blocks = np.arange(1, STEPS // LOSS_BLOCK + 1) * LOSS_BLOCK
    loss = (
        3 + 3 * np.exp(-blocks / 300) + 0.02 * random.standard_normal(len(blocks))
    ) * loss_factor
    looks = np.arange(1, LOOKS + 1) * LOOK
    amax = 2.0 ** (0.05 * random.standard_normal(LOOKS)) * scale
    if jump:
        loss = loss * np.where(blocks > jump + LOSS_LATER, 1.1, 1)
        amax = amax * np.where(looks > jump, 8, 1)
    quiet = 30 + 0.2 * random.standard_normal(LOOKS)
    return {
        "loss": loss,
        "grad_norm": np.ones(len(blocks)),
        "heldout": float(loss[-1]),
        "steps": STEPS,
        "program": "none",
        "statistics": {"input||amax": amax, "weight|current|sqnr_db": quiet},
    }


def study():
    seeds = (1, 2, 3)
    return {
        "runs": {
            # Their mean is what the others are made from.
            "bf16": {seed: record(seed, 1 - 1e-4 * seed) for seed in seeds},
            "bf16_twin": {seed: record(seed, 1 + 1e-4 * seed) for seed in seeds},
            "current": {seed: record(seed, 1.01 + 0.001 * (seed - 2)) for seed in seeds},
            "current_e5m2": {seed: record(seed, jump=SETS_IN_AT) for seed in seeds},
            "current_hopper": {1: record(1, 1.02)},
        }
    }


def check(what, holds):
    if not holds:
        raise SystemExit(f"self-test FAILED: {what}")
    print(f"ok: {what}")


def close(value, expected, tolerance=1e-9):
    return abs(value - expected) <= tolerance


def check_gaps(one):
    gap = gaps(one, "current")["heldout"]
    check("a gap is paired by seed and in percent", close(gap["mean"], 1.0, 1e-6))
    check("its spread is that of a sample", close(gap["std"], 0.1, 1e-6))
    twin = gaps(one, "bf16_twin")["heldout"]["values"][2]
    check("a replica is compared with the others", close(twin, 0.06, 1e-4))
    deviation = summary.chance(one)["heldout"]
    check("chance is the replicas' gaps, squared", close(deviation, 0.02 * (14 / 3) ** 0.5, 1e-4))
    check(
        "a mean is told in errors of chance",
        summary.over_chance({"mean": 1.0, "values": [1, 1, 1, 1]}, 0.5) == "+4.0",
    )
    check("a single seed has no spread", gaps(one, "current_hopper")["heldout"]["std"] is None)
    check("no pair, no gap", gaps(one, "mx") is None)
    check(
        "the last loss is over the last 200 steps",
        close(last_loss({"loss": [100.0] * 180 + [3.0] * 10 + [1.0] * 10}), 2.0),
    )
    check(
        "smoothing takes what there is at the start",
        np.allclose(smoothed([1, 2, 3, 4], 2), [1, 1.5, 2.5, 3.5]),
    )


def check_moves(one):
    steps_of = moved(one, "current_e5m2", "bf16", {"current": "current"})
    first = ranking(steps_of)[0]
    check("the statistic that moved is first", first[0] == "input||amax")
    check("at the look at which it moved", first[1] == SETS_IN_AT + LOOK)
    check(
        "what stayed in the band is not named",
        all(row[0] != "weight|current|sqnr_db" for row in ranking(steps_of)),
    )
    paired = gap_moved(one, "current_e5m2", "bf16")
    check("the gap moves when the loss does", paired == [SETS_IN_AT + LOSS_LATER + LOOK] * 3)
    check("twins do not move", gap_moved(one, "bf16_twin", "bf16") == [None] * 3)
    mean, deviation = band(np.zeros((3, 10)), 1.0)
    values = np.zeros(10)
    values[4] = 100
    long = np.full(30, 100.0)
    long[1] = 0
    check(
        "a move begins with looks in a row",
        first_moved(long, np.zeros(30), np.ones(30)) == 2,
    )
    check("one look outside is no move", first_moved(values, mean, deviation) is None)
    values[4:7] = 100
    check("nor is what comes back", first_moved(values, mean, deviation) is None)
    values[6:] = np.nan
    check("NaN is outside", first_moved(values, mean, deviation) == 4)
    check(
        "a band that says nothing excludes nothing",
        first_moved(values, mean * np.nan, deviation) is None,
    )


def check_files(one):
    with tempfile.TemporaryDirectory() as folder:
        kept.write(folder, one)
        again = kept.read(folder)
        check(
            "what is kept reads back",
            all(
                np.allclose(again["runs"][name][seed]["loss"], record["loss"], rtol=1e-4)
                and np.allclose(
                    again["runs"][name][seed]["statistics"]["input||amax"],
                    record["statistics"]["input||amax"],
                    rtol=1e-2,
                )
                for name, seed, record in kept.each(one)
            ),
        )
        with open(os.path.join(folder, kept.STATISTICS), "rb") as file:
            before = file.read()
        check("the compressed file has no time in it", before[4:8] == bytes(4))
        kept.write(folder, one)
        with open(os.path.join(folder, kept.STATISTICS), "rb") as file:
            check("the same numbers give the same bytes", file.read() == before)
    worst = kept.worst_over_sites(
        {
            "a|input||amax": [1, 5],
            "b|input||amax": [3, None],
            "a|input|x|sqnr_db": [9, 9],
            "b|input|x|sqnr_db": [7, 8],
        },
        2,
    )
    check(
        "the worst site is the largest, of SQNR the smallest",
        worst["input||amax"][0] == 3
        and np.isnan(worst["input||amax"][1])
        and list(worst["input|x|sqnr_db"]) == [7, 8],
    )


def check_tables(one):
    result = summary.results(one)
    table = summary.gap_table(result)
    check("the table has the gap with its spread", "+1.00 ± 0.10 (+0.90, +1.00, +1.10)" in table)
    check(
        "the table of moves has the lead over the gap",
        f"(+{LOSS_LATER})" in summary.first_table(result),
    )
    quiet = summary.first_table(result).split("neither loss nor gap with any: ")[1]
    check(
        "what stayed quiet is named below the table", "off by 1e-6" in quiet and "E5M2" not in quiet
    )


def run():
    one = study()
    check_gaps(one)
    check_moves(one)
    check_files(one)
    check_tables(one)
