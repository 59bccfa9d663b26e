"""The adapter for PyTorch: layers under a live plan, arms, replays, a shadow in the process."""

from gnomon.torch.arms import ARMS, arm, nudge
from gnomon.torch.checkpoint import DamagedCheckpoint
from gnomon.torch.faults import Fault
from gnomon.torch.fingerprint import fingerprint
from gnomon.torch.plan_linear import (
    PlanLinear,
    SiteChoice,
    adopt,
    linear_sites,
    plan_sites,
    set_plan,
    set_step,
    site_name,
)
from gnomon.torch.ranks import broadcast
from gnomon.torch.replay import Job, make_verifier, replay
from gnomon.torch.scalars import attach
from gnomon.torch.scaled_gemm import kernel_of
from gnomon.torch.self_test import SelfTest, resume_self_test
from gnomon.torch.shadow import Shadow, ShadowWindow
from gnomon.torch.snapshot import Snapshot
from gnomon.torch.supervised import init
from gnomon.torch.weights_hash import weights_hash

__all__ = [
    "ARMS",
    "DamagedCheckpoint",
    "Fault",
    "Job",
    "PlanLinear",
    "SelfTest",
    "Shadow",
    "ShadowWindow",
    "SiteChoice",
    "Snapshot",
    "adopt",
    "arm",
    "attach",
    "broadcast",
    "fingerprint",
    "init",
    "kernel_of",
    "linear_sites",
    "make_verifier",
    "nudge",
    "plan_sites",
    "replay",
    "resume_self_test",
    "set_plan",
    "set_step",
    "site_name",
    "weights_hash",
]
