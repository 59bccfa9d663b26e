"""The study's pictures."""

import io
import os
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402

from analysis import (  # noqa: E402
    BAND_DEVIATIONS,
    LOOK,
    LOSS_BLOCK,
    band,
    chance_curves,
    conditions_of,
    gap_curves,
    least_deviation,
    looks_of,
    matching,
    smoothed,
    transformed,
)
from conditions import BY_NAME, CONDITIONS  # noqa: E402
from summary import COMMON, COMPARED, compared, median_step, words  # noqa: E402

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D1F", "#444444"]
BLACK, GREY = "#000000", "#999999"
SMOOTH = 100 // LOSS_BLOCK  # blocks in a mean that is drawn
PALETTE = 128  # colours of a picture
GAP_SHOWN = 2.0  # percent: the scale of gaps over steps, where it is enough
LARGE = 3.0  # percent: gaps above it are drawn apart, on a logarithmic scale
SHARES = {"underflow", "saturation", "subnormal", "top_code"}  # their bands end at 0
# Drawn where nothing moved.
UNMOVED = [
    {"series": series, "median_step": None}
    for series in ("weight|in use|sqnr_db", "gradient|in use|underflow", "grad_norm")
]
FIRST_STEP = 100  # before it a mean over SMOOTH blocks is not one

plt.style.use(Path(__file__).resolve().parents[1] / "studies.mplstyle")
plt.rcParams.update({"axes.titlesize": 9.5, "legend.fontsize": 8, "lines.linewidth": 1.4})


def steps_of(values, every):
    return (np.arange(len(values)) + 1) * every


def worth_drawing(steps, first_step=FIRST_STEP):
    return steps >= (first_step if steps[-1] > 2 * first_step else 0)


def common_seeds(study):
    """Those that all conditions have which were trained with several: other seeds shift a mean."""
    groups = ("reference", "recipes", "mantissa", "bad")
    seeds = [
        set(runs)
        for name, runs in study["runs"].items()
        if len(runs) > 1 and BY_NAME[name].group in groups
    ]
    return set.intersection(*seeds) if seeds else set()


def loss_of(study, name):
    """[seeds, blocks]: smoothed losses."""
    runs = study["runs"][name]
    seeds = common_seeds(study) & set(runs) or set(runs)
    return np.array([smoothed(runs[seed]["loss"], SMOOTH) for seed in sorted(seeds)])


def present(study, group):
    return [one for one in CONDITIONS if one.group == group and one.name in study["runs"]]


def draw_loss(axes, study, name, label, colour, style="-", first_step=FIRST_STEP):
    curves = loss_of(study, name)
    steps = steps_of(curves[0], LOSS_BLOCK)
    keep = worth_drawing(steps, first_step)
    axes.plot(steps[keep], curves.mean(axis=0)[keep], color=colour, label=label, linestyle=style)
    if len(curves) > 1:
        axes.fill_between(
            steps[keep],
            curves.min(axis=0)[keep],
            curves.max(axis=0)[keep],
            color=colour,
            alpha=0.12,
            linewidth=0,
        )


def loss_curves(study, path):
    figure, panels = plt.subplots(1, 3, figsize=(11.5, 4.6), layout="constrained")
    for axes, group, title, first in (
        (panels[0], "recipes", "FP8 and MX recipes, from step 400", 400),
        (panels[1], "mantissa", "reduced mantissa, from step 400", 400),
        (panels[2], "bad", "known bad cases", FIRST_STEP),
    ):
        draw_loss(axes, study, "bf16", "BF16", BLACK, first_step=first)
        for index, one in enumerate(present(study, group)):
            draw_loss(
                axes,
                study,
                one.name,
                one.label,
                COLOURS[index % len(COLOURS)],
                "--" if index % 2 else "-",
                first,
            )
        axes.set_title(title)
        axes.set_xlabel("step")
        axes.legend(loc="upper right")
    low, high = panels[0].get_ylim()
    panels[0].set_ylim(low, high + 0.25 * (high - low))  # room for the legend
    panels[0].set_ylabel("training loss, nats per token (mean of 100 steps)")
    figure.suptitle(
        "Training loss: mean of the seeds that all have, least to most as a band", fontsize=10
    )
    save(figure, path)


def gap_panels(study, path):
    shown = [one for group in ("recipes", "mantissa") for one in present(study, group)]
    columns = max(1, min(4, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    figure, panels = plt.subplots(
        rows,
        columns,
        figsize=(11.5, 2.3 * rows),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )
    chance = chance_curves(study, lambda loss: smoothed(loss, SMOOTH))
    for axes, one in zip(panels.flat, shown):
        curves = gap_curves(study, one.name, smooth=SMOOTH)
        steps = steps_of(curves[0], LOSS_BLOCK)
        keep = worth_drawing(steps)
        if len(chance):
            axes.fill_between(
                steps[keep],
                chance.min(axis=0)[keep],
                chance.max(axis=0)[keep],
                color=GREY,
                alpha=0.4,
                linewidth=0,
            )
        axes.axhline(0, color=BLACK, linewidth=0.8)
        for curve in curves:
            axes.plot(steps[keep], curve[keep], color=COLOURS[0], linewidth=0.7, alpha=0.6)
        axes.plot(steps[keep], curves.mean(axis=0)[keep], color=COLOURS[1], linewidth=1.8)
        highest = np.nanmax(np.abs(curves[:, keep]))
        axes.set_title(one.label if highest <= GAP_SHOWN else f"{one.label} (other scale)")
        if highest <= GAP_SHOWN:
            axes.set_ylim(-GAP_SHOWN, GAP_SHOWN)
    for axes in panels.flat[len(shown) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("gap, %")
    for column in range(columns):
        last = max(row for row in range(rows) if row * columns + column < len(shown))
        panels[last][column].set_xlabel("step")
        panels[last][column].tick_params(labelbottom=True)
    figure.suptitle(
        "Training loss above BF16's of the same seed (means of 100 steps). Blue: each seed. "
        "Red: their mean. Grey: BF16 runs against each other",
        fontsize=9.5,
    )
    save(figure, path)


def final_gaps(rows, path):
    groups = ("reference", "recipes", "mantissa", "rate", "bad")
    rows = sorted(rows, key=lambda row: groups.index(row[1]["group"]))
    small = [row for row in rows if abs(row[2]["heldout"]["mean"]) <= LARGE]
    large = [row for row in rows if row not in small]
    height = 1.6 + 0.36 * max(len(small), len(large))
    figure, panels = plt.subplots(
        1, 2, figsize=(11.5, height), layout="constrained", gridspec_kw={"width_ratios": [3, 2]}
    )
    draw_gaps(panels[0], small)
    draw_gaps(panels[1], large)
    panels[0].set_title(f"up to {LARGE:.0f} %")
    panels[0].set_xlabel("loss gap to the same seed in BF16 (or as said), %")
    panels[1].set_title(f"above {LARGE:.0f} %")
    panels[1].set_xlabel("loss gap, %, logarithmic")
    panels[1].set_xscale("log")
    panels[1].set_xlim(1, 1000)
    panels[1].set_xticks([1, 3, 10, 30, 100, 300, 1000], "1 3 10 30 100 300 1000".split())
    panels[1].minorticks_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    figure.suptitle(
        "Gaps at the end: points are seeds, diamonds their mean, bars least to most",
        fontsize=10,
    )
    save(figure, path)


def draw_gaps(axes, rows):
    axes.set_visible(bool(rows))
    if not rows:
        return
    for place, (_, _, gaps) in enumerate(rows):
        for which, colour, shift, label in (
            ("heldout", COLOURS[0], -0.14, "held-out split, evaluated in BF16"),
            ("last", COLOURS[1], 0.14, "last 200 training steps"),
        ):
            gap = gaps[which]
            heights = [place + shift] * len(gap["values"])
            axes.plot(gap["values"], heights, "o", markersize=4, alpha=0.5, color=colour, mew=0)
            axes.errorbar(
                gap["mean"],
                place + shift,
                xerr=[
                    [gap["mean"] - min(gap["values"])],
                    [max(gap["values"]) - gap["mean"]],
                ],
                fmt="D",
                markersize=4.5,
                color=colour,
                capsize=2.5,
                linewidth=1.1,
                label=label if place == 0 else None,
            )
    if any(gaps["heldout"]["mean"] < LARGE for _, _, gaps in rows):
        axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [wrapped(label) for label, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)


def wrapped(label):
    if ", against " in label:
        return label.replace(", against ", ",\nagainst ", 1)
    return label.replace(", ", ",\n", 1) if len(label) > 30 else label


def statistics_of_bad(study, result, path):
    """A column for each bad case: its gap, and the first statistics to move against their band."""
    bad = [row for row in result["conditions"] if row["group"] == "bad" and row.get("first")]
    depth = 3
    figure, panels = plt.subplots(
        1 + depth,
        len(bad),
        figsize=(2.95 * len(bad), 8.2),
        layout="constrained",
        sharex=True,
        squeeze=False,
    )
    for column, row in enumerate(bad):
        condition = BY_NAME[row["condition"]]
        draw_gap(panels[0][column], study, condition, row["first"])
        panels[0][column].set_title(wrapped(row["label"]))
        used = 0
        for place, one in enumerate(distinct(row["first"]["moved"] or UNMOVED, depth)):
            draw_series(panels[1 + place][column], study, condition, one, row["first"]["gap_steps"])
            used = 1 + place
        for axes in panels[used + 1 :, column]:
            axes.set_visible(False)
        panels[used][column].set_xlabel("step")
        panels[used][column].tick_params(labelbottom=True)
    panels[0][0].set_ylabel("gap, %")
    figure.suptitle(
        "Known bad cases: the gap, and the statistics that left the healthy band (grey) first,"
        " each the worst of 13 sites.\nVertical lines: solid, where the statistic left the band; "
        "dashed, where the gap did (medians over seeds)",
        fontsize=9.5,
    )
    save(figure, path)


def distinct(moved, count):
    """The first of each number, so that one number on three tensors does not fill the picture."""
    numbers, chosen = set(), []
    for one in moved:
        number = one["series"].rsplit("|", 1)[-1]
        if number not in numbers:
            numbers.add(number)
            chosen.append(one)
    return chosen[:count]


def mark(axes, step, style):
    if step is not None:
        axes.axvline(step, color=COLOURS[1], linestyle=style, linewidth=1.1)


def draw_gap(axes, study, condition, first):
    reference = condition.statistics_reference
    curves = gap_curves(study, condition.name, reference, SMOOTH)
    steps = steps_of(curves[0], LOSS_BLOCK)
    keep = worth_drawing(steps)
    for curve in curves:
        axes.plot(steps[keep], curve[keep], color=COLOURS[0], linewidth=1)
    axes.axhline(0, color=BLACK, linewidth=0.8)
    mark(axes, median_step(first["gap_steps"]), "--")
    axes.text(
        0.03,
        0.95,
        f"gap to {BY_NAME[reference].label}",
        transform=axes.transAxes,
        va="top",
        fontsize=7.5,
    )


def looked_at(record, series):
    return looks_of(record["grad_norm"]) if series == "grad_norm" else record["statistics"][series]


def draw_series(axes, study, condition, one, gap_steps):
    series = one["series"]
    other = matching(series, COMPARED.get(condition.name, COMMON))
    records = [
        record
        for replica in conditions_of(condition.statistics_reference, condition.name)
        for record in study["runs"].get(replica, {}).values()
        if other == "grad_norm" or other in record["statistics"]
    ]
    healthy = np.array([transformed(other, looked_at(record, other)) for record in records])
    mean, deviation = band(healthy, least_deviation(series))
    steps = steps_of(mean, LOOK)
    low = mean - BAND_DEVIATIONS * deviation
    axes.fill_between(
        steps,
        np.maximum(low, 0) if series.rsplit("|", 1)[-1] in SHARES else low,
        mean + BAND_DEVIATIONS * deviation,
        color=GREY,
        alpha=0.35,
        linewidth=0,
    )
    for record in study["runs"][condition.name].values():
        axes.plot(
            steps, transformed(series, looked_at(record, series)), color=COLOURS[2], linewidth=0.9
        )
    mark(axes, one["median_step"], "-")
    mark(axes, median_step(gap_steps), "--")
    logarithmic = not np.array_equal(transformed(series, [1.0, 2.0]), [1.0, 2.0])
    axes.set_title(("log2 of " if logarithmic else "") + words(series), fontsize=8)


def save(figure, path):
    """With a palette: a fraction of the bytes, and no difference to be seen in line drawings."""
    drawn = io.BytesIO()
    figure.savefig(drawn)
    plt.close(figure)
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(colors=PALETTE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def draw(study, result, folder):
    """Leaves out a picture that would have nothing in it."""
    rows = list(compared(result))
    loss_curves(study, os.path.join(folder, "loss.png"))
    if present(study, "recipes") or present(study, "mantissa"):
        gap_panels(study, os.path.join(folder, "gap.png"))
    if rows:
        final_gaps(rows, os.path.join(folder, "final.png"))
    if any(row["group"] == "bad" for _, row, _ in rows):
        statistics_of_bad(study, result, os.path.join(folder, "statistics.png"))
