"""The parts that train: what checkpoints, statistics and changes of the plan cost, convergence, and the whole loop with a
fault."""

import contextlib
import json
import pathlib
import re
import shutil
import sqlite3
import statistics
import subprocess
import time

from . import curves, frame

ROOTS = ["/usr/lib/python3", "/usr/share/doc", "/usr/local/lib"]
# Preparing it takes 2 s for each megabyte: what the run of 3,000 steps has, and what the shorter ones do with.
TEXT_BYTES = {"text-data": 64_000_000, "text-data-small": 24_000_000}
FILE_BYTES_MAX = 400_000
RECIPES = ["bf16", "current", "delayed", "rowwise", "rowwise_gw_hp", "block"]
GPT2_124M = {"layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "ffn": 2048, "vocabulary": 50304,
             "context": 1024}
TINY = {"layers": 2, "width": 96, "heads": 6, "kv_heads": 2, "ffn": 256, "vocabulary": 272, "context": 64}


# ---- text ----

def text_files(setting, limit):
    """Sources and documentation of the Python that runs here and of the system, in one order."""
    roots = frame.quiet([setting.given.python, "-c",
                         "import sys, sysconfig; print('\\n'.join({*sysconfig.get_paths().values()}))"]).splitlines()
    total = 0
    seen = set()
    for root in sorted(roots) + ROOTS:
        for path in sorted(pathlib.Path(root).rglob("*")) if pathlib.Path(root).is_dir() else []:
            if path.suffix not in (".py", ".rst", ".txt", ".md", ".pyi") or not path.is_file():
                continue
            real = path.resolve()
            size = real.stat().st_size
            if real in seen or not 500 < size < FILE_BYTES_MAX:
                continue
            seen.add(real)
            total += size
            if total > limit:
                return
            yield real


def text_data(setting, budget, name="text-data-small"):
    """A dataset of that text, made once; the small one comes with a bundle."""
    bundled = frame.ROOT / "text-data"
    if name == "text-data-small" and not setting.smoke and (bundled / "dataset.json").is_file():
        return bundled
    name = "text-data-small" if setting.smoke else name
    data = setting.work / name
    if (data / "dataset.json").is_file():
        return data
    shutil.rmtree(data, ignore_errors=True)
    setting.work.mkdir(parents=True, exist_ok=True)
    lines = setting.work / "text.jsonl"
    with open(lines, "w", encoding="utf-8") as out:
        for path in text_files(setting, 3_000_000 if setting.smoke else TEXT_BYTES[name]):
            budget.check("while text was collected")
            out.write(json.dumps({"text": path.read_text(encoding="utf-8", errors="replace")}) + "\n")
    tokenizer = "bytes" if setting.smoke else "sentencepiece:16384"
    frame.run(setting, [setting.program("gnomon"), "data", "prepare", "--input", lines, "--out", data, "--tokenizer",
                        tokenizer, "--heldout", "0.02", "--shard-tokens", "100000000"], budget)
    lines.unlink()
    return data


# ---- runs ----

def toml(table):
    def value(it):
        return json.dumps(it) if isinstance(it, (str, bool, list)) else str(it)

    return "".join(f"[{section}]\n" + "".join(f"{key} = {value(it)}\n" for key, it in keys.items())
                   for section, keys in table.items())


def run_table(setting, name, data, steps, **sections):
    """A run's file as nested dictionaries: the shape of 124M parameters, or a tiny one."""
    tiny = setting.smoke
    table = {
        "run": {"name": name, "steps": steps, "threads": setting.threads, "device": setting.device},
        "model": dict(TINY if tiny else GPT2_124M),
        "data": {"dir": str(data)},
        "batch": {"sequences": 4, "tokens": 64} if tiny else {"sequences": 16, "tokens": 1024},
        "optimizer": {"learning_rate": 6e-4, "warmup_steps": 20 if tiny else 200, "total_steps": steps},
        "precision": {"recipe": "current"},
        "checkpoint": {"every": 1_000_000},
        "eval": {"sequences": 8 if tiny else 32},
    }
    for section, keys in sections.items():
        table.setdefault(section, {}).update(keys)
    return table


def trainer(setting, budget, folder, table, more=()):
    """Trains to the end; what its log says of the time in steps and of what held them up."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "run.toml"
    config.write_text(toml(table))
    began = time.monotonic()
    _, said = frame.run(setting, [setting.program("gnomon-trainer"), "--config", config, "--dir", folder / "run", *more],
                        budget, merged=True)
    found = re.search(r"([0-9.]+) s in steps; reports and checkpoints held them up by ([0-9.]+) s", said)
    if not found:
        raise frame.Failed(f"the trainer does not say how long its steps took: {frame.last_lines(said, 5)}")
    return {"seconds_in_steps": float(found[1]), "held_up_seconds": float(found[2]),
            "wall_seconds": time.monotonic() - began}


def overheads(setting, budget, found):
    """Checkpoints and statistics every 100 steps, against the same run without, in turn."""
    data = text_data(setting, budget)
    steps = 20 if setting.smoke else 300
    every = 10 if setting.smoke else 100
    kinds = {"plain": {}, "checkpoints": {"checkpoint": {"every": every}},
             "statistics": {"statistics": {"every": every}}}
    rounds = found.setdefault("rounds", [{}] if setting.smoke else [{}, {}])
    found.update(steps=steps, every=every)
    for row in rounds:
        for kind, sections in kinds.items():
            if kind not in row:
                with scratch(setting, f"overheads-{kind}") as folder:
                    row[kind] = trainer(setting, budget, folder, run_table(setting, kind, data, steps, **sections))

    def share(kind, key):
        """The smallest over the rounds, as other work only adds."""
        return min((row[kind][key] - row["plain"][key]) / row["plain"]["seconds_in_steps"] for row in rounds)

    found["checkpoint_share"] = (share("checkpoints", "held_up_seconds")
                                 + max(0.0, share("checkpoints", "seconds_in_steps")))
    found["statistics_share"] = share("statistics", "seconds_in_steps")


@contextlib.contextmanager
def scratch(setting, name):
    """A folder of the part's work that goes when it ends well: checkpoints are large."""
    folder = setting.work / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


# ---- convergence ----

@contextlib.contextmanager
def daemon(setting, folder, policy):
    """A controller for as long as the block; yields its address."""
    folder.mkdir(parents=True, exist_ok=True)
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    (folder / "policy.toml").write_text(policy)
    log = open(folder / "gnomond.log", "a")
    process = frame.start(setting, [setting.program("gnomond"), "--ledger", folder / "ledger.sqlite", "--listen",
                                    "127.0.0.1:0", "--port-file", port_file, "--policy", folder / "policy.toml"],
                          stdout=log, stderr=log)
    try:
        for _ in range(300):
            if port_file.is_file() and port_file.read_text().strip():
                break
            if process.poll() is not None:
                raise frame.Failed(f"gnomond ended: {frame.last_lines((folder / 'gnomond.log').read_text(), 3)}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
    finally:
        frame.stop(process, 20)
        log.close()


def train_a_slice(setting, budget, folder, table, url):
    """Goes on with a run until it is complete or the time is up; whether it is complete, and its held-out loss."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(toml(table))
    with open(folder / "trainer.log", "a") as log:
        process = frame.start(setting, [setting.program("gnomon-trainer"), "--config", folder / "run.toml", "--dir",
                                        folder / "run", "--controller", url], stdout=log, stderr=log)
        try:
            process.wait(timeout=max(1, budget.left() - 40))  # for the checkpoint at the slice's end
        except subprocess.TimeoutExpired:
            pass
        status = frame.stop(process, 35)
    said = (folder / "trainer.log").read_text()
    if status != 0:
        raise frame.Failed(f"the trainer in {folder} ended with status {status}: {frame.last_lines(said, 6)}")
    found = re.findall(r"completed: held-out loss ([0-9.]+)", said)
    return float(found[-1]) if found else None


def losses(ledger, name):
    """Step → training loss of a run, of the last attempt that made the step."""
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT step, loss FROM steps JOIN runs ON runs.id = steps.run WHERE runs.name = ? "
                                "ORDER BY attempt", (name,)).fetchall()
    return dict(rows)


def convergence(setting, budget, found):
    """The same model on real text in BF16 and in every recipe. Ends with the part's time and goes on in the next call."""
    data = text_data(setting, budget, "text-data")
    steps = 12 if setting.smoke else setting.given.convergence_steps
    folder = setting.work / "convergence"
    recipes = RECIPES[:2] if setting.smoke else RECIPES
    state = folder / "done.json"
    done = json.loads(state.read_text()) if state.is_file() else {}
    policy = 'mode = "observe"\n[window]\nevery = 1000000000\nsteps = 1\n'
    with daemon(setting, folder, policy) as url:
        for recipe in recipes:
            if recipe in done:
                continue
            if budget.left() < (5 if setting.smoke else 90):
                break
            table = run_table(setting, recipe, data, steps, precision={"recipe": recipe},
                              checkpoint={"every": 1_000_000, "keep_last": 1})
            heldout = train_a_slice(setting, budget, folder / recipe, table, url)
            if heldout is None:
                break
            done[recipe] = {"heldout_loss": heldout}
            state.write_text(json.dumps(done))
    compare(setting, found, folder, recipes, done, steps)


def compare(setting, found, folder, recipes, done, steps):
    curve = {recipe: losses(folder / "ledger.sqlite", recipe) for recipe in recipes}
    last = max(1, steps // 6)
    found.update(steps=steps, complete=len(done) == len(recipes), runs={}, mean_over_last_steps=last)
    of_bf16 = curve.get("bf16", {})
    for recipe in recipes:
        mine = curve[recipe]
        both = [step for step in mine if step in of_bf16 and steps - last < step <= steps]
        run = {"steps_done": max(mine, default=0), **done.get(recipe, {})}
        if both and recipe != "bf16":
            mean = sum(of_bf16[step] for step in both)
            run["gap_percent"] = 100 * (sum(mine[step] for step in both) - mean) / mean
        if recipe in done and "bf16" in done and recipe != "bf16":
            reference = done["bf16"]["heldout_loss"]
            run["heldout_gap_percent"] = 100 * (done[recipe]["heldout_loss"] - reference) / reference
        found["runs"][recipe] = run
    picture = setting.beside("convergence.svg")
    title = f"Training loss on real text, {'a tiny model' if setting.smoke else '124M parameters'}"
    picture.write_text(curves.picture(curve, title, str(setting.facts["gpu"] or setting.facts["processor"])))
    found["picture"] = picture.name
    found["losses"] = {recipe: [round(one[step], 5) for step in sorted(one)][::max(1, steps // 300)]
                       for recipe, one in curve.items()}


# ---- the loop ----

LOOP_VERIFIERS = 3  # on the trainer's device: one alone takes minutes for the replays of triage
LOOP_FAULT = {"kind": "scale_shift", "site": "model.layers.0.mlp.down_proj", "tensor": "input"}


# What `gnomon summary` says of the outcome.
OUTCOME = ["detected", "verdicts", "blamed_sites", "actions", "recovered", "returned_to_fp8", "false_alarms"]


def loop_tables(setting, data):
    """The demo's run: a fault that only FP8 feels in its middle. On a device a larger model, and windows that last as long
    as the replays of earlier ones."""
    root = frame.ROOT
    if setting.smoke:
        text = (root / "examples/demo/trainer-small.toml").read_text().replace("@DATA@", str(data))
        text += (root / "examples/demo/fault-fp8-small.toml").read_text()
        return text.replace("vocabulary = 257", "vocabulary = 272"), (root / "examples/demo/policy-small.toml").read_text()
    steps = 3200  # as long as the text lasts: from 9 epochs on the held-out loss rises
    table = run_table(
        setting, "demo", data, steps, run={"seed": 1, "job_id": "1"},
        model={"layers": 8, "width": 512, "heads": 8, "kv_heads": 4, "ffn": 1408, "vocabulary": 16384},
        batch={"sequences": 16, "tokens": 512}, checkpoint={"every": 50, "keep_last": 3},
        optimizer={"learning_rate": 1e-3}, eval={"sequences": 64})
    fault = "".join(f"{key} = {json.dumps(value)}\n" for key, value in
                    {**LOOP_FAULT, "log2_factor": 6, "start_step": 860, "end_step": 2000}.items())
    policy = (root / "examples/demo/policy.toml").read_text()
    for old, new in (("every = 20", "every = 150"), ("steps = 10", "steps = 50"),
                     ("burn_in_steps = 80", "burn_in_steps = 400")):
        if old not in policy:
            raise frame.Failed(f"examples/demo/policy.toml has no line {old!r} any more")
        policy = policy.replace(old, new)
    return toml(table) + "[[fault]]\n" + fault, policy


def replay_times(ledger):
    """Arm → how many replays ended well, and medians of their seconds: in steps, in held-out losses, from lease to end."""
    rows = {}
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as database:
        for arm, *seconds in database.execute(
                "SELECT arm, replay_seconds, eval_seconds, s.finished_at - granted_at FROM results s "
                "JOIN replays USING (run, replay) JOIN leases USING (run, replay, token)"):
            rows.setdefault(arm, []).append(seconds)
    return {arm: {"count": len(taken), **{name: statistics.median(one[i] or 0 for one in taken)
                                          for i, name in enumerate(["steps", "heldout", "lease"])}}
            for arm, taken in rows.items()}


def loop(setting, budget, found):
    """Controller, verifier and trainer on one device, with a fault that only FP8 feels."""
    data = text_data(setting, budget)
    with scratch(setting, "loop") as folder:
        config, policy = loop_tables(setting, data)
        (folder / "run.toml").write_text(config)
        with daemon(setting, folder, policy) as url:
            with open(folder / "verifier.log", "w") as log:
                verifiers = [frame.start(setting, [setting.program("gnomon-verifier"), "--controller", url, "--threads",
                                                   max(1, setting.threads // LOOP_VERIFIERS), "--name", f"verifier-{i}"],
                                         stdout=log, stderr=log) for i in range(LOOP_VERIFIERS)]
                try:
                    frame.run(setting, [setting.program("gnomon-trainer"), "--config", folder / "run.toml", "--dir",
                                        folder / "run", "--controller", url], budget)
                finally:
                    for verifier in verifiers:
                        frame.stop(verifier, 10)
        ledger = folder / "ledger.sqlite"
        found["replays"] = replay_times(ledger)
        command = [setting.program("gnomon"), "summary", "--ledger", ledger, "--expect", "fp8", "--json"]
        status, out = frame.run(setting, command, budget, statuses=(0, 1))
        found["summary"] = json.loads(out[out.index("{"):]) if "{" in out else {"said": out}
        found["as_expected"] = status == 0
        if status != 0:
            found["why"] = ", ".join(f"{name}: {found['summary'].get(name)}" for name in OUTCOME)
        report = setting.beside("loop-report.html")
        frame.run(setting, [setting.program("gnomon"), "report", "--ledger", ledger, "--out", report], budget)
        found["report"] = report.name
