"""Faults of FP8 for tests and demonstrations: each acts at one site, where FP8 computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gnomon.records import InjectedFault


@dataclass(frozen=True)
class Fault:
    """A fault of `site` in the steps `start_step` <= step < `end_step` (0: for ever).

    kind: "scale_shift" (the scale of `tensor` is off by 2^`log2_factor`: a fault of the numerics,
    in the arm `fakequant` too) or "dropped_k_block" (the kernel leaves out the first `terms` terms
    of its sums in fprop: a fault of the kernel, which `fakequant` does not have).
    tensor: "input", "weight" or "gradient".
    """

    site: str
    start_step: int
    end_step: int = 0
    kind: Literal["scale_shift", "dropped_k_block"] = "scale_shift"
    tensor: Literal["input", "weight", "gradient"] = "input"
    log2_factor: int = 0
    terms: int = 0

    def acts_at(self, step: int) -> bool:
        """Returns whether it acts in the step of this number."""
        return self.start_step <= step and (self.end_step == 0 or step < self.end_step)

    def record(self) -> InjectedFault:
        """Returns the fault as the registration reports it."""
        if self.kind == "scale_shift":
            what = f"the scale of the {self.tensor} is off by 2^{self.log2_factor}"
        else:
            what = f"the kernel leaves out {self.terms} terms of its sums"
        return InjectedFault(
            kind=self.kind,
            site=self.site,
            start_step=self.start_step,
            end_step=self.end_step,
            description=what,
        )
