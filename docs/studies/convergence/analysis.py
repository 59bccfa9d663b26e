"""Compares runs: loss gaps paired by seed, and which statistic left the healthy band first.

A kept study is a dictionary: "runs" maps a condition to its seeds' records, each with "loss" and
"grad_norm" (means of LOSS_BLOCK steps; NaN where a step was not finite), "heldout" and "statistics"
(series by name, one value each look).
"""

import numpy as np

LOSS_BLOCK = 10  # steps in a kept mean
LOOK = 20  # steps between looks at the statistics
# Runs in BF16 that differ by a little at the start; the first is called the reference.
REPLICAS = ("bf16", "bf16_twin", "bf16_twin2")
LAST_STEPS = 200  # of the mean training loss at the end

BAND_DEVIATIONS = 4.0
BAND_WINDOW = 5  # looks before and after that a deviation is taken over
LOOKS_IN_A_ROW = 3
OUTSIDE_SHARE = 0.9

# The least deviation that counts, by the last part of a series' name: below it the band would be
# thinner than what anybody would act on. Those in LOGARITHMIC are in powers of two.
LOGARITHMIC = {"amax", "std", "kurtosis", "token_kurtosis_mean", "token_kurtosis_max", "grad_norm"}
LEAST_DEVIATION = {
    "underflow": 2.5e-4,
    "subnormal": 2.5e-4,
    "top_code": 2.5e-6,
    "saturation": 2.5e-6,  # four of them: the 0.001 % of arXiv 2310.18313
    "sqnr_db": 0.1,
    "scale_error": 0.01,
    "dynamic_range": 0.1,
    "loss": 0.005,
    "gap": 0.05,
}
LEAST_LOGARITHMIC = 0.03


def least_deviation(series):
    kind = series.rsplit("|", 1)[-1]
    return LEAST_LOGARITHMIC if kind in LOGARITHMIC else LEAST_DEVIATION[kind]


def transformed(series, values):
    values = np.asarray(values, dtype=float)
    if series.rsplit("|", 1)[-1] in LOGARITHMIC:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log2(np.maximum(values, 1e-30))
    return values


def band(reference, least):
    """Mean over seeds at each look, and the seeds' deviation from it, pooled over looks nearby.

    reference: [seeds, looks], at least two seeds."""
    mean = reference.mean(axis=0)
    variance = ((reference - mean) ** 2).sum(axis=0) / (len(reference) - 1)
    deviation = np.empty_like(mean)
    for look in range(len(mean)):
        near = variance[max(0, look - BAND_WINDOW) : look + BAND_WINDOW + 1]
        deviation[look] = np.sqrt(near.mean())
    return mean, np.maximum(deviation, least)


def first_moved(values, mean, deviation):
    """Index of the look from which on `values` have left mean ± BAND_DEVIATIONS·deviation.

    That is: outside at LOOKS_IN_A_ROW looks in a row, and at OUTSIDE_SHARE of all looks from there
    to the end. None: never. NaN and infinity are outside; where the band itself is not finite,
    everything is inside."""
    inside = np.abs(values - mean) <= BAND_DEVIATIONS * deviation  # false for NaN
    inside |= ~np.isfinite(mean) | ~np.isfinite(deviation)
    outside = ~inside
    count = len(outside)
    for look in range(count - LOOKS_IN_A_ROW + 1):
        if outside[look : look + LOOKS_IN_A_ROW].all() and outside[look:].mean() >= OUTSIDE_SHARE:
            return look
    return None


def looks_of(loss):
    """Block means as means of the LOOK steps that end at each look."""
    per_look = LOOK // LOSS_BLOCK
    loss = np.asarray(loss, dtype=float)
    whole = len(loss) // per_look * per_look
    return loss[:whole].reshape(-1, per_look).mean(axis=1)


def last_loss(record):
    return float(np.mean(record["loss"][-(LAST_STEPS // LOSS_BLOCK) :]))


def percent(value, reference):
    return 100 * (value - reference) / reference


def conditions_of(reference, name):
    """What a reference stands for: BF16 for all its replicas, except the one that is compared."""
    replicas = REPLICAS if reference == REPLICAS[0] else (reference,)
    return [replica for replica in replicas if replica != name]


def pairs(study, name, reference):
    """(seed, record, the reference's losses) for each seed that both have.

    The losses of BF16 are the mean of its replicas with that seed: what one of them has by luck
    would otherwise be in every gap."""
    result = []
    for seed, record in sorted(study["runs"].get(name, {}).items()):
        others = [
            study["runs"][replica][seed]
            for replica in conditions_of(reference, name)
            if seed in study["runs"].get(replica, {})
        ]
        if others:
            mean = {
                key: np.mean([one[key] for one in others], axis=0) for key in ("loss", "heldout")
            }
            result.append((seed, record, mean))
    return result


def spread(values):
    values = np.asarray(values, dtype=float)
    return {
        "values": [float(value) for value in values],
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
    }


def gaps(study, name, reference="bf16"):
    """Gaps in percent of the reference's loss, seed by seed; None without a pair."""
    both = pairs(study, name, reference)
    if not both:
        return None
    return {
        "seeds": [seed for seed, _, _ in both],
        "heldout": spread([percent(a["heldout"], b["heldout"]) for _, a, b in both]),
        "last": spread([percent(last_loss(a), last_loss(b)) for _, a, b in both]),
    }


def gap_curves(study, name, reference="bf16", smooth=1):
    """[seeds, blocks]: the gap in percent, both losses averaged over `smooth` blocks."""
    curves = []
    for _, case, other in pairs(study, name, reference):
        curves.append(percent(smoothed(case["loss"], smooth), smoothed(other["loss"], smooth)))
    return np.array(curves)


def smoothed(values, width):
    """Mean of the last `width` values, of as many as there are at the start."""
    values = np.asarray(values, dtype=float)
    return np.array([values[max(0, end - width) : end].mean() for end in range(1, len(values) + 1)])


def series_for_loss(record):
    return {"loss": looks_of(record["loss"]), "grad_norm": looks_of(record["grad_norm"])}


def matching(name, own):
    """The reference's series that a case's series is held against.

    `own` maps the case's roundings to the reference's; one that it leaves out is compared with
    nothing."""
    parts = name.split("|")
    if len(parts) < 3 or not parts[1]:
        return name
    if parts[1] not in own:
        return None
    return "|".join([parts[0], own[parts[1]], parts[2]])


def moved(study, name, reference, roundings):
    """For each series when it left the reference's band: a step for each seed, None for never."""
    references = [
        series_for_loss(record) | record["statistics"]
        for replica in conditions_of(reference, name)
        for record in study["runs"].get(replica, {}).values()
    ]
    result = {}
    for _, record in sorted(study["runs"].get(name, {}).items()):
        for series, values in (series_for_loss(record) | record["statistics"]).items():
            other = matching(series, roundings)
            healthy = [transformed(other, one[other]) for one in references if other in one]
            if len(healthy) < 2:
                continue
            mean, deviation = band(np.array(healthy), least_deviation(series))
            look = first_moved(transformed(series, values), mean, deviation)
            result.setdefault(series, []).append(None if look is None else (look + 1) * LOOK)
    return result


def chance_curves(study, of_loss):
    """Gaps of BF16's replicas to each other, which differ by chance alone: [runs, ...]."""
    return np.array(
        [
            percent(of_loss(record["loss"]), of_loss(other["loss"]))
            for replica in REPLICAS
            for _, record, other in pairs(study, replica, REPLICAS[0])
        ]
    )


def gap_moved(study, name, reference):
    """Steps at which the gap to the same seed's reference left the band of what chance does."""
    chance = chance_curves(study, looks_of)
    if len(chance) < 2:
        return []
    mean, deviation = band(chance, least_deviation("gap"))
    steps = []
    for _, case, other in pairs(study, name, reference):
        values = percent(looks_of(case["loss"]), looks_of(other["loss"]))
        look = first_moved(values, mean, deviation)
        steps.append(None if look is None else (look + 1) * LOOK)
    return steps


def ranking(steps_of):
    """Series that moved with every seed, earliest median first: [(series, median, steps)]."""
    rows = [
        (series, float(np.median(steps)), steps)
        for series, steps in steps_of.items()
        if steps and all(step is not None for step in steps)
    ]
    return sorted(rows, key=lambda row: (row[1], row[0]))
