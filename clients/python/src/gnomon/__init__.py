"""Puts a training loop in Python under a gnomon controller.

run = gnomon.init(project="nano", name="fp8-1", model=model, plan="plan.toml")
for batch in loader:
    with run.step(batch=batch) as s:
        ...
        s.log(loss=loss, grad_norm=norm)
run.finish()
"""

from gnomon.batch import batch_hash
from gnomon.errors import (
    ApiError,
    ConfigError,
    ConnectionFailed,
    GnomonError,
    RanksDisagree,
    Rejected,
    Replaced,
    RestartRequired,
    RolledBack,
    Stopped,
)
from gnomon.plan import GemmPrecision, PrecisionPlan
from gnomon.records import Fingerprint, InjectedFault, ReplayStep, SiteScoreRow
from gnomon.registration import init
from gnomon.run import Capabilities, ResumePoint, Rollback, Run
from gnomon.step import Step
from gnomon.verify import LeaseLost, ReplayResult, ReplayTask, Unsupported, Verifier, verifier

__version__ = "0.2.0"

__all__ = [
    "ApiError",
    "Capabilities",
    "ConfigError",
    "ConnectionFailed",
    "Fingerprint",
    "GemmPrecision",
    "GnomonError",
    "InjectedFault",
    "LeaseLost",
    "PrecisionPlan",
    "RanksDisagree",
    "Rejected",
    "Replaced",
    "ReplayResult",
    "ReplayStep",
    "ReplayTask",
    "RestartRequired",
    "ResumePoint",
    "Rollback",
    "RolledBack",
    "Run",
    "SiteScoreRow",
    "Step",
    "Stopped",
    "Unsupported",
    "Verifier",
    "batch_hash",
    "init",
    "verifier",
]
