"""What is true of a simulated training job: its plans, what they make of the loss, and the losses and hashes of steps.

Every number is a function of the job's name, the attempt and the step, so that a verifier can compute what a trainer
has reported, and so that a repeated report is the same."""

from __future__ import annotations

import fnmatch
import hashlib
import random
import re
import tomllib
from dataclasses import dataclass, field

LAYERS = 3
SITES = [
    f"model.layers.{layer}.{part}"
    for layer in range(LAYERS)
    for part in ("self_attn.q_proj", "mlp.up_proj", "mlp.down_proj")
] + ["lm_head"]
FINGERPRINT = {
    "device": "test CPU",
    "backend": "cpu",
    "libraries": "none 1.0",
    "build": "test",
    "world_size": 1,
    "threads": 1,
}
BASE_PLAN = """\
version = 1

[[rule]]
match = "*"
fprop = "fp8"
dgrad = "fp8"
wgrad = "fp8"
forward_format = "e4m3"
gradient_format = "e5m2"
recipe = "current"
"""
BF16_PLAN = '[[rule]]\nmatch = "*"\ngemms = "bf16"\n'


@dataclass(frozen=True)
class Fault:
    """FP8 in `site` costs `gap` nats in steps whose number modulo `period` is in [first, last)."""

    site: str = SITES[1]
    first: int = 40
    last: int = 70
    period: int = 120
    gap: float = 0.05


def alternatives(glob: str) -> list[str]:
    """`{a,b}` of a plan's globs spelt out; `last` is the last layer."""
    found = re.search(r"\{([^{}]*)\}", glob)
    if not found:
        return [glob]
    parts = found.group(1).split(",")
    spelt = [glob[: found.start()] + part.replace("last", str(LAYERS - 1)) + glob[found.end() :] for part in parts]
    return [one for text in spelt for one in alternatives(text)]


def runs_in_fp8(plan: str, site: str) -> bool:
    """Whether the site's forward GEMM is in FP8 under a plan: the last rule that matches says so."""
    precision = "bf16"
    for rule in tomllib.loads(plan or BASE_PLAN).get("rule", []):
        matches = any(fnmatch.fnmatchcase(site, glob) for glob in alternatives(rule["match"]))
        if matches and "fprop" in rule.get("only", ["fprop"]):
            precision = rule.get("fprop", rule.get("gemms", precision))
    return precision == "fp8"


def digits(*parts: object) -> str:
    """A hash of 16 hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass
class Truth:
    """Of one job. The trainer's thread writes, verifiers read what was written before they got their lease."""

    name: str
    fault: Fault | None
    plans: dict[int, str] = field(default_factory=lambda: {1: BASE_PLAN})
    versions: dict[tuple[int, int], int] = field(default_factory=dict)  # (attempt, step) → plan version
    losses: dict[tuple[int, int], float] = field(default_factory=dict)  # those that are not `usual_loss`
    broken_hosts: set[tuple[int, int]] = field(default_factory=set)  # windows' ends that the host computed wrongly

    def usual_loss(self, attempt: int, step: int) -> float:
        noise = random.Random(repr((self.name, attempt, step))).uniform(-1, 1)
        return 4.0 - 0.5 * (1 - 1 / (1 + step / 500)) + 0.004 * noise

    def loss(self, attempt: int, step: int) -> float:
        return self.losses.get((attempt, step), self.usual_loss(attempt, step))

    def weights(self, attempt: int, step: int) -> str:
        return digits(self.name, attempt, step)

    def plan_at(self, attempt: int, step: int) -> str:
        return self.plans.get(self.versions.get((attempt, step), 1), BASE_PLAN)

    def suffers(self, plan: str, step: int) -> bool:
        """Whether the fault is on at this step under this plan."""
        fault = self.fault
        if fault is None or not fault.first <= step % fault.period < fault.last:
            return False
        return runs_in_fp8(plan, fault.site)


def number(value: float) -> float | str:
    """As messages write what JSON cannot."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value
