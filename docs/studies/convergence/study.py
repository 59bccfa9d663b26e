#!/usr/bin/env python3
"""The convergence study: trains every condition with every seed, compares, draws. See README.md."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

from conditions import BY_NAME, CONDITIONS  # noqa: E402
from runs import Queue, Run, RunFailed, is_done, minutes  # noqa: E402


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def arguments():
    parser = argparse.ArgumentParser(
        description="Trains the study's conditions, compares them with BF16 and draws the "
        "pictures. Runs that are there already are not trained again.",
        epilog="example: study.py --bin build/release/bin --jobs 2",
    )
    parser.add_argument(
        "--bin",
        default=os.path.join(ROOT, "build", "release", "bin"),
        help="folder with gnomond, gnomon-trainer and gnomon",
    )
    parser.add_argument(
        "--out",
        default=os.path.join(ROOT, "build", "studies", "convergence"),
        help="where the dataset and the runs go",
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help="replace the numbers, tables and pictures of this folder (else: OUT/kept)",
    )
    parser.add_argument("--steps", type=int, default=2000, help="of each run (default 2000)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 1 to N (default 3)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--nice", type=int, default=10, help="priority of the runs (default 10)")
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=list(BY_NAME),
        help="these conditions alone: " + ", ".join(BY_NAME),
    )
    parser.add_argument(
        "--text",
        default=os.path.join(ROOT, "build", "data", "text"),
        help="what scripts/fetch-text left (it is called when nothing is there)",
    )
    parser.add_argument("--train-only", action="store_true", help="no comparison, no pictures")
    parser.add_argument(
        "--from-kept",
        action="store_true",
        help="train nothing: compare and draw from the numbers kept in this folder",
    )
    parser.add_argument(
        "--self-test",
        action="store_true",
        help="check the comparison on curves whose answer is known, and end",
    )
    options = parser.parse_args()
    for name in ("steps", "seeds", "jobs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: expected at least 1")
    options.out = os.path.abspath(options.out)
    options.bin = os.path.abspath(options.bin)
    return options


def prepare(options):
    dataset = os.path.join(options.out, "dataset")
    if not os.path.exists(os.path.join(dataset, "dataset.json")):
        subprocess.run([os.path.join(ROOT, "scripts", "fetch-text"), options.text], check=True)
        subprocess.run(
            [
                os.path.join(options.bin, "gnomon"),
                "data",
                "prepare",
                "--input",
                options.text,
                "--out",
                dataset,
                "--tokenizer",
                "sentencepiece:1024",
            ],
            check=True,
        )
    return dataset


def train(options):
    program = os.path.join(options.bin, "gnomon-trainer")
    options.program = subprocess.run(
        [program, "--version"], check=True, capture_output=True, text=True
    ).stdout.strip()
    dataset = prepare(options)
    chosen = [c for c in CONDITIONS if not options.only or c.name in options.only]
    # Seed by seed, so that a study that is cut short has whole seeds; the slowest last.
    runs = [
        Run(condition, seed, options, dataset)
        for seed in range(1, options.seeds + 1)
        for condition in sorted(chosen, key=lambda c: c.seeds_max < 1000)
        if seed <= condition.seeds_max
    ]
    runs.sort(key=lambda run: run.condition.seeds_max < 1000)
    missing = [
        run for run in runs if not is_done(options.out, run.condition, run.seed, options.steps)
    ]
    say(f"{options.program}: {len(missing)} of {len(runs)} runs to do, {options.steps} steps each")
    started = time.monotonic()
    failed = Queue(missing, options.jobs, say).run(every_seconds=20)
    say(f"trained for {minutes(time.monotonic() - started)}")
    return failed


def compare(options):
    """Reads, compares, draws; says where the results are."""
    try:
        import numpy  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise SystemExit(
            f"study.py: {error}; python3 -m pip install -r {os.path.join(HERE, 'requirements.txt')}"
        ) from error
    import kept
    import plots
    import summary

    folder = HERE if options.publish or options.from_kept else os.path.join(options.out, "kept")
    data = os.path.join(folder, "data")
    if not options.from_kept:
        kept.write(data, kept.from_records(options.out))
    # What is drawn is what is kept, no more digits.
    study = kept.read(data)
    if "bf16" not in study["runs"]:
        say("no run in BF16: nothing to compare with")
        return
    result = summary.results(study)
    with open(os.path.join(data, "results.json"), "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    plots.draw(study, result, folder)
    tables = {
        "gaps": summary.gap_table(result),
        "moves": summary.first_table(result),
        "levels": summary.level_table(result),
    }
    print("\n\n".join(tables.values()))
    say(f"numbers in {data}, pictures in {folder}")


def main():
    options = arguments()
    if options.self_test:
        import self_test

        self_test.run()
        return 0
    failed = [] if options.from_kept else train(options)
    if not options.train_only:
        compare(options)
    for line in failed:
        say(f"FAILED {line}")
    return 1 if failed else 0


def interrupt(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; started again, it goes on with the runs that are missing")
        sys.exit(130)
    except (RunFailed, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"study.py: {error}")
