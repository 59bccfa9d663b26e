"""What the repository keeps of a study: from the runs' records to three files of text, and back."""

import csv
import glob
import gzip
import io
import json
import os

import numpy as np

from analysis import LOOK, LOSS_BLOCK
from conditions import BY_NAME

LOSSES = "losses.csv"
NORMS = "grad_norms.csv"
RUNS = "runs.csv"
STATISTICS = "statistics.csv.gz"

SMALLEST = {"sqnr_db"}  # the worst site is the one with the least; of all others the most


def block_means(values):
    values = np.array([np.nan if value is None else value for value in values], dtype=float)
    whole = len(values) // LOSS_BLOCK * LOSS_BLOCK
    return values[:whole].reshape(-1, LOSS_BLOCK).mean(axis=1)


def worst_over_sites(statistics, looks):
    """Series by tensor|rounding|number: the worst of all sites at each look; NaN: none."""
    sites = {}
    for name, values in statistics.items():
        site, rest = name.split("|", 1)
        sites.setdefault(rest, {})[site] = [np.nan if value is None else value for value in values]
    result = {}
    for rest, by_site in sorted(sites.items()):
        number = rest.rsplit("|", 1)[-1]
        table = np.array(list(by_site.values()), dtype=float)
        assert table.shape[1] == looks
        result[rest] = table.min(axis=0) if number in SMALLEST else table.max(axis=0)
    return result


def from_records(out):
    """The study of the records in OUT/runs."""
    study = {"runs": {}}
    for path in sorted(glob.glob(os.path.join(out, "runs", "*.json.gz"))):
        with gzip.open(path, "rt") as file:
            record = json.load(file)
        if record["statistics_steps"] != list(range(LOOK, len(record["loss"]) + 1, LOOK)):
            raise SystemExit(
                f"{path}: looks are missing: there are {len(record['statistics_steps'])}"
            )
        study["runs"].setdefault(record["condition"], {})[record["seed"]] = {
            "loss": block_means(record["loss"]),
            "grad_norm": block_means(record["grad_norm"]),
            "heldout": float("nan")
            if record["final_loss"] is None
            else float(record["final_loss"]),
            "statistics": worst_over_sites(record["statistics"], len(record["statistics_steps"])),
            "program": record["program"],
            "steps": len(record["loss"]),
        }
    return study


def each(study):
    order = {name: index for index, name in enumerate(BY_NAME)}
    for name in sorted(study["runs"], key=lambda one: order.get(one, len(order))):
        for seed in sorted(study["runs"][name]):
            yield name, seed, study["runs"][name][seed]


def short(value, digits):
    return "nan" if not np.isfinite(value) else f"{value:.{digits}g}"


def write_curves(path, study, key, digits):
    columns = list(each(study))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step"] + [f"{name}:{seed}" for name, seed, _ in columns])
        for block in range(len(columns[0][2][key])):
            writer.writerow(
                [(block + 1) * LOSS_BLOCK]
                + [short(record[key][block], digits) for _, _, record in columns]
            )


def statistics_names(series):
    """What is kept of the statistics: what the comparison reads."""
    return [
        name
        for name in series
        if name.rsplit("|", 1)[-1]
        not in ("nans", "infinities", "relative_error", "token_kurtosis_mean")
    ]


def write(folder, study):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, RUNS), "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["condition", "seed", "steps", "heldout_loss", "program"])
        for name, seed, record in each(study):
            writer.writerow(
                [name, seed, record["steps"], repr(record["heldout"]), record["program"]]
            )
    write_curves(os.path.join(folder, LOSSES), study, "loss", 5)
    write_curves(os.path.join(folder, NORMS), study, "grad_norm", 3)
    text = io.StringIO()
    for name, seed, record in each(study):
        for series in statistics_names(record["statistics"]):
            values = ",".join(short(value, 3) for value in record["statistics"][series])
            text.write(f"{name}:{seed},{series},{values}\n")
    # No name and no time in the header: the same numbers give the same bytes.
    with open(os.path.join(folder, STATISTICS), "wb") as raw:
        with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=9, mtime=0) as file:
            file.write(text.getvalue().encode())


def read(folder):
    """The study that write() left."""
    study = {"runs": {}}
    with open(os.path.join(folder, RUNS), newline="") as file:
        for row in csv.DictReader(file):
            study["runs"].setdefault(row["condition"], {})[int(row["seed"])] = {
                "heldout": float(row["heldout_loss"]),
                "program": row["program"],
                "steps": int(row["steps"]),
                "statistics": {},
            }
    for name, key in ((LOSSES, "loss"), (NORMS, "grad_norm")):
        with open(os.path.join(folder, name), newline="") as file:
            rows = list(csv.reader(file))
        table = np.array([[float(cell) for cell in row] for row in rows[1:]])
        for column, title in enumerate(rows[0][1:], start=1):
            condition, seed = title.split(":")
            study["runs"][condition][int(seed)][key] = table[:, column]
    with gzip.open(os.path.join(folder, STATISTICS), "rt", newline="") as file:
        for title, series, *values in csv.reader(file):
            condition, seed = title.split(":")
            study["runs"][condition][int(seed)]["statistics"][series] = np.array(
                [float(value) for value in values]
            )
    return study
