"""A replay as a command, in a program of its own. What it does wrong is its last argument."""

from __future__ import annotations

import json
import pathlib
import sys
import time

_, checkpoint, first, steps, arm, plan, out, how = sys.argv
print("replaying", arm, "from", checkpoint, "plan", plan, flush=True)
result = {
    "arm": arm,
    "steps": [
        {"step": step, "loss": 2.0, "grad_norm": 1.0, "batch_hash": "ab"}
        for step in range(int(first), int(first) + int(steps))
    ],
    "replay_end_loss_bf16": 2.0,
    "start_loss_bf16": 2.0,
    "start_loss_plan": 2.0,
    "run_end_loss_bf16": "NaN",
    "gap_error": 0.01,
}
if how == "hangs":
    time.sleep(60)
if how == "fails":
    print("no such shard: 7")
    sys.exit(3)
if how == "cannot":
    print("this build has no fakequant")
    sys.exit(69)
if how == "eats":
    memory = bytearray(4 << 30)
if how == "writes":
    pathlib.Path(out + ".big").write_bytes(bytes(64 << 20))
if how == "other window":
    result["window"] = 99
if how == "typing error":
    result["replay_end_los"] = 2.0
if how == "wrong type":
    result["gap_error"] = "small"
if how == "plan":
    result["plan_text"] = 1
    print(pathlib.Path(plan).read_text() if plan else "no plan")
    sys.exit(4)
if how != "says nothing":
    pathlib.Path(out).write_text("{" if how == "no json" else json.dumps(result))
