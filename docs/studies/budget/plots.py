"""The budget study's picture, from findings.json: how soon each fault was caught."""

import json
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).resolve().parent
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {"observed": "#0072B2", "half": "#D55E00"}
NAMES = {"observed": "default budget (5%)", "half": "50 of every 100 steps (first seed)"}
MISSED = 40_000  # steps: where runs without an alarm are drawn

plt.style.use(HERE.parent / "studies.mplstyle")


def main():
    findings = json.loads((HERE / "findings.json").read_text())
    faulty = [row for row in findings["runs"] if row["fault"] != "none" and not row["fault"].startswith("liar")]
    delays = defaultdict(lambda: defaultdict(list))
    for row in faulty:
        if row["role"] in COLOURS:
            delay = row["delay_steps"]
            delays[row["fault"]][row["role"], row["harmful"]].append(MISSED if delay is None else max(delay, 1))
    faults = sorted(delays, key=lambda name: max(max(each) for each in delays[name].values()))
    figure, axis = plt.subplots(figsize=(9, 0.26 * len(faults) + 1.2))
    for place, fault in enumerate(faults):
        for (role, harmful), values in delays[fault].items():
            at = [place + (0.15 if role == "observed" else -0.15)] * len(values)
            axis.plot(values, at, "o", ms=4, alpha=0.7, color=COLOURS[role], mfc=None if harmful else "white")
    for role, colour in COLOURS.items():
        axis.plot([], [], "o", ms=4, color=colour, label=NAMES[role])
    axis.plot([], [], "o", ms=4, color="#555555", mfc="white", label="a fault that did no harm")
    axis.axvline(MISSED, color="#999999", lw=1)
    axis.text(MISSED * 0.9, len(faults) - 0.6, "not caught", ha="right", color="#555555")
    axis.set_yticks(range(len(faults)), faults)
    axis.set_xscale("log")
    axis.set_xlabel("steps from the fault to the alarm")
    axis.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(HERE / "delays.png")


if __name__ == "__main__":
    main()
