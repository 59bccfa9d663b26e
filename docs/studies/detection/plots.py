"""The detection study's pictures, from findings.json and the traces that record.sh has unpacked."""

import json
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).resolve().parent
TRACES = HERE.parents[2] / "build/detection-traces"
# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#999999"
RIVALS = ["eprocess", "eprocess_any", "cusum", "ewma", "glr", "shewhart", "fixed"]
LEAST = 0.02  # per cent: where the logarithmic axes of ends begin

plt.style.use(HERE.parent / "studies.mplstyle")


def shadows(path):
    """(start step, D in per cent) of the shadow windows of a trace."""
    found = []
    with open(path) as lines:
        for line in lines:
            window = json.loads(line).get("window")
            if window and window["kind"] == "shadow" and window["d_percent"] is not None:
                found.append((window["start_step"], float(window["d_percent"])))
    return sorted(found)


def draw_windows(out):
    """D of healthy runs, window by window, one panel for each configuration."""
    by_configuration = defaultdict(list)
    for path in sorted(TRACES.glob("*.none.*.observed.jsonl")):
        by_configuration[path.name.split(".")[0]].append(shadows(path))
    figure, axes = plt.subplots(1, len(by_configuration), figsize=(11, 2.6), sharey=True)
    for axis, (name, runs) in zip(axes, sorted(by_configuration.items())):
        for run in runs:
            axis.plot([s for s, _ in run], [d for _, d in run], ".", ms=3, color=BLUE, alpha=0.5)
        axis.axhline(0.25, color=ORANGE, lw=1)
        axis.set_title(name)
        axis.set_xlabel("step")
        axis.set_ylim(-0.5, 1.05)
    axes[0].set_ylabel("D, % of the loss")
    figure.tight_layout()
    figure.savefig(out)


def draw_delays(findings, out):
    """Median delay of each fault, the detector against its rivals at equally many false alarms."""
    rivals = findings["rivals"]
    faults = sorted(rivals["eprocess"]["median_by_fault"])
    figure, axis = plt.subplots(figsize=(9, 0.26 * len(faults) + 1.2))
    for place, fault in enumerate(faults):
        for kind in RIVALS:
            delay = rivals[kind]["median_by_fault"].get(fault)
            own = kind == "eprocess"
            axis.plot(
                48 if delay is None else delay,
                place,
                marker="o" if own else {"fixed": "x", "cusum": "s", "ewma": "^"}.get(kind, "."),
                color=BLUE if own else GREY if delay is not None else ORANGE,
                mfc=BLUE if own else "none",
                ms=7 if own else 5,
                zorder=3 if own else 2,
            )
    axis.set_yticks(range(len(faults)), faults)
    axis.set_xscale("log")
    axis.set_xticks([1, 2, 3, 5, 10, 20, 48], ["1", "2", "3", "5", "10", "20", "missed"])
    axis.set_xlabel("median windows to the alarm (blue: eprocess; squares CUSUM, triangles EWMA, x fixed)")
    figure.tight_layout()
    figure.savefig(out)


def draw_ends(findings, out):
    """How the runs ended, unattended and under the default policy, against healthy FP8."""
    rows = {}
    for run in findings["runs"]:
        key = (run["fault"], run["configuration"], run["seed"])
        rows.setdefault(key, {})[run["mode"]] = run
    pairs = [
        (key, both)
        for key, both in rows.items()
        if {"observe", "enforce"} <= both.keys() and both["observe"]["harmful"]
    ]
    pairs.sort(key=lambda pair: pair[0])
    if not pairs:
        return
    figure, axis = plt.subplots(figsize=(9, 0.16 * len(pairs) + 1.2))
    for place, (_, both) in enumerate(pairs):
        for mode, colour in (("observe", ORANGE), ("enforce", GREEN)):
            end = both[mode]["above_healthy_percent"]
            ended = both[mode]["outcome"] == "completed"
            axis.plot(
                max(LEAST, end if end is not None else 1000),
                place,
                marker="o" if ended else "s",
                mfc=colour if ended else "none",
                color=colour,
                ms=4,
            )
    axis.set_yticks(range(len(pairs)), [key[0] for key, _ in pairs], fontsize=7)
    axis.set_xscale("log")
    axis.set_xlabel(
        "last held-out loss above healthy FP8's, % (at the left edge: "
        f"{LEAST} or less)\norange: nobody attended; green: default policy; square: held"
    )
    figure.tight_layout()
    figure.savefig(out)


def draw_confusion(findings, out):
    """Verdicts against what was wrong."""
    confusion = findings["confusion"]
    origins = sorted(confusion)
    verdicts = sorted({verdict for row in confusion.values() for verdict in row})
    if not origins:
        return
    figure, axis = plt.subplots(figsize=(1.6 + 0.8 * len(verdicts), 1.4 + 0.35 * len(origins)))
    axis.grid(False)
    for y, origin in enumerate(origins):
        total = sum(confusion[origin].values())
        for x, verdict in enumerate(verdicts):
            count = confusion[origin].get(verdict, 0)
            axis.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, color=BLUE, alpha=0.7 * count / total))
            if count:
                axis.text(x, y, str(count), ha="center", va="center")
    axis.set_xlim(-0.5, len(verdicts) - 0.5)
    axis.set_ylim(len(origins) - 0.5, -0.5)
    axis.set_xticks(range(len(verdicts)), verdicts, rotation=30, ha="right")
    axis.set_yticks(range(len(origins)), origins)
    axis.set_ylabel("what was wrong")
    axis.set_xlabel("first verdict (none: no alarm)")
    figure.tight_layout()
    figure.savefig(out)


def main():
    findings = json.loads((HERE / "findings.json").read_text())
    draw_windows(HERE / "windows.png")
    draw_delays(findings, HERE / "delays.png")
    draw_ends(findings, HERE / "ends.png")
    draw_confusion(findings, HERE / "confusion.png")


if __name__ == "__main__":
    main()
