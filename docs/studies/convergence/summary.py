"""From a kept study to results.json and its tables."""

import numpy as np

from analysis import REPLICAS, gap_moved, gaps, moved, ranking
from conditions import BY_NAME, CONDITIONS

# A condition's roundings and the healthy runs' they are held against. "current" is asked of every
# run, whatever it uses.
COMMON = {"current": "current"}
COMPARED = {
    "delayed_frozen": COMMON | {"in use": "in use"},
    "current_e5m2": COMMON | {"in use": "current:e5m2/e5m2"},
    "e5m2_lr3": COMMON | {"in use": "current:e5m2/e5m2"},
}
ERRORS_TOLD = 10  # standard errors: more than so many are not told apart
FIRST = 3  # series named in a table


def first_moves(study, condition):
    """What left the healthy band, and when, for one condition."""
    name = condition.name
    reference = condition.statistics_reference
    steps_of = moved(study, name, reference, COMPARED.get(name, COMMON))
    loss = steps_of.pop("loss", [])
    ranked = ranking(steps_of)
    return {
        "reference": reference,
        "series": len(steps_of),
        "moved_with_a_seed": sum(
            any(step is not None for step in steps) for steps in steps_of.values()
        ),
        "moved": [
            {"series": series, "median_step": median, "steps": steps}
            for series, median, steps in ranked
        ],
        "loss_steps": loss,
        "gap_steps": gap_moved(study, name, reference),
    }


def levels(study, name, number):
    """A number of the rounding in use, by tensor: of the worst site, mean over looks and seeds."""
    found = {}
    for tensor in ("input", "weight", "gradient"):
        series = f"{tensor}|in use|{number}"
        values = [
            float(np.mean(record["statistics"][series]))
            for record in study["runs"][name].values()
            if series in record["statistics"]
        ]
        if values:
            found[tensor] = float(np.mean(values))
    return found


def chance(study):
    """Standard deviation of one run's gap, in percent, when nothing but chance differs."""
    every = [gap for gap in (gaps(study, replica) for replica in REPLICAS) if gap]
    return {
        which: float(
            np.sqrt(np.mean([value**2 for gap in every for value in gap[which]["values"]]))
        )
        for which in ("heldout", "last")
        if every
    }


def results(study):
    rows = []
    for condition in CONDITIONS:
        if condition.name not in study["runs"]:
            continue
        row = {
            "condition": condition.name,
            "label": condition.label,
            "group": condition.group,
            "seeds": len(study["runs"][condition.name]),
            "heldout_loss": [
                record["heldout"] for record in study["runs"][condition.name].values()
            ],
        }
        row["gap"] = gaps(study, condition.name)
        if condition.reference != "bf16":
            row["gap_to_reference"] = {
                "reference": condition.reference,
                **(gaps(study, condition.name, condition.reference) or {}),
            }
        row["first"] = first_moves(study, condition)
        row["sqnr_db"] = levels(study, condition.name, "sqnr_db")
        row["underflow"] = levels(study, condition.name, "underflow")
        rows.append(row)
    programs = sorted(
        {record["program"] for runs in study["runs"].values() for record in runs.values()}
    )
    steps = sorted({record["steps"] for runs in study["runs"].values() for record in runs.values()})
    return {"programs": programs, "steps": steps, "chance": chance(study), "conditions": rows}


def signed(value):
    return "not finite" if not np.isfinite(value) else f"{value:+.2f}"


def with_spread(gap):
    if gap is None:
        return "—"
    if gap["std"] is None:
        return f"{signed(gap['mean'])} (one seed)"
    values = ", ".join(signed(value) for value in gap["values"])
    return f"{signed(gap['mean'])} ± {gap['std']:.2f} ({values})"


def compared(result):
    """(label, condition's row, gaps) of all that the table and the picture of gaps show."""
    label_of = {row["condition"]: row["label"] for row in result["conditions"]}
    for row in result["conditions"]:
        own = row.get("gap_to_reference")
        # At another learning rate BF16 at the usual one says nothing, unless the rate is the fault.
        if row.get("gap") and not (own and row["group"] == "rate"):
            yield row["label"], row, row["gap"]
        if own and own.get("heldout"):
            yield f"{row['label']}, against {label_of[own['reference']]}", row, own


def over_chance(gap, deviation):
    """A mean gap in standard errors of what chance alone would leave of that many seeds."""
    if not deviation:
        return "—"
    errors = gap["mean"] / (deviation / np.sqrt(len(gap["values"])))
    return f"above {ERRORS_TOLD:.0f}" if errors > ERRORS_TOLD else f"{errors:+.1f}"


def gap_table(result):
    lines = [
        "| condition | held-out gap, % | in errors of chance | gap of the last 200 steps, % "
        "| in errors of chance |",
        "|---|---|---|---|---|",
    ]
    for label, _, gap in compared(result):
        cells = [label]
        for which in ("heldout", "last"):
            cells.append(with_spread(gap[which]))
            cells.append(over_chance(gap[which], result["chance"].get(which)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def words(series):
    parts = [part.replace("sqnr_db", "SQNR (dB)").replace("_", " ") for part in series.split("|")]
    if len(parts) == 1:
        return parts[0]
    tensor, rounding, number = parts
    if not rounding:
        return f"{tensor} {number}"
    return f"{tensor} {number}, {'what if ' if rounding != 'in use' else ''}{rounding}"


def told_steps(steps):
    if not steps:
        return "—"
    return ", ".join("never" if step is None else str(step) for step in steps)


def median_step(steps):
    """The median over seeds; None when that is among those that never moved."""
    if not steps:
        return None
    median = float(np.median([np.inf if step is None else step for step in steps]))
    return median if np.isfinite(median) else None


def lead(row, loss):
    """Steps by which a series came before the loss, in medians."""
    median = median_step(loss)
    return "" if median is None else f" ({median - row['median_step']:+.0f})"


def is_quiet(first):
    return not first["moved"] and all(
        step is None for step in first["loss_steps"] + first["gap_steps"]
    )


def first_table(result):
    quiet = []
    lines = [
        "| condition | held against | first to move, at step (steps before the gap moved) "
        "| series moved: all seeds, any, of | loss left the band | gap moved |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["conditions"]:
        first = row["first"]
        if not first["series"]:
            continue
        if is_quiet(first):
            seen = f"{first['moved_with_a_seed']} of {first['series']} series with a seed"
            quiet.append(f"{row['label']} ({seen})")
            continue
        names = (
            "; ".join(
                f"{words(one['series'])} at {one['median_step']:.0f}{lead(one, first['gap_steps'])}"
                for one in first["moved"][:FIRST]
            )
            or "nothing with every seed"
        )
        cells = [
            row["label"],
            BY_NAME[first["reference"]].label,
            names,
            f"{len(first['moved'])}, {first['moved_with_a_seed']}, {first['series']}",
            told_steps(first["loss_steps"]),
            told_steps(first["gap_steps"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if quiet:
        lines += [
            "",
            "No series moved with every seed, and neither loss nor gap with any: "
            + "; ".join(quiet)
            + ".",
        ]
    return "\n".join(lines)


def level_table(result):
    lines = [
        "| condition | SQNR in use, dB: input, weight, gradient | underflow in use, %: the same "
        "| gap of the last 200 steps, % |",
        "|---|---|---|---|",
    ]
    rows = [row for row in result["conditions"] if row["sqnr_db"] and row["group"] != "rate"]
    for row in sorted(rows, key=lambda one: one["sqnr_db"]["weight"]):
        sqnr = ", ".join(f"{value:.1f}" for value in row["sqnr_db"].values())
        underflow = ", ".join(f"{100 * value:.3g}" for value in row["underflow"].values())
        gap = signed(row["gap"]["last"]["mean"]) if row["gap"] else "—"
        lines.append(f"| {row['label']} | {sqnr} | {underflow} | {gap} |")
    return "\n".join(lines)
