"""The adapter for PyTorch: layers under a live plan, arms, replays, a shadow in the process."""

from gnomon.torch.arms import ARMS, arm, nudge
from gnomon.torch.faults import Fault
from gnomon.torch.plan_linear import (
    PlanLinear,
    SiteChoice,
    adopt,
    layer_count,
    linear_sites,
    plan_sites,
    set_plan,
    set_step,
    site_name,
)
from gnomon.torch.scaled_gemm import kernel_of

__all__ = [
    "ARMS",
    "Fault",
    "PlanLinear",
    "SiteChoice",
    "adopt",
    "arm",
    "kernel_of",
    "layer_count",
    "linear_sites",
    "nudge",
    "plan_sites",
    "set_plan",
    "set_step",
    "site_name",
]
