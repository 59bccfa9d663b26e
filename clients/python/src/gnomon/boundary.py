"""What each directive does, at a step boundary, on all ranks alike."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gnomon.errors import (
    ConfigError,
    RanksDisagree,
    Rejected,
    Replaced,
    RestartRequired,
    Stopped,
)
from gnomon.plan import PrecisionPlan
from gnomon.records import Directive
from gnomon.run_state import is_there
from gnomon.supervision import Decision

if TYPE_CHECKING:
    from gnomon.run import Run

log = logging.getLogger("gnomon")


def apply(run: Run, decision: Decision) -> None:
    """Carries a decision out. Raises RestartRequired, Stopped, Replaced and RanksDisagree."""
    if decision.kind == "replaced":
        raise Replaced(decision.reason)
    if decision.directive is None:
        return _apply_own(run, decision)
    directive = decision.directive
    if directive.kind == "set_plan":
        _set_plan(run, directive)
    elif directive.kind == "rollback":
        _roll_back(run, directive)
    elif directive.kind == "checkpoint_now":
        _checkpoint_now(run, directive)
    elif directive.kind in ("pause", "resume"):
        if run._lead is not None:
            run._lead.set_paused(directive.kind == "pause")
        _answer(run, directive, "")
    elif directive.kind == "stop":
        if run._on_checkpoint is not None:
            _write_checkpoint(run, directive)
        run._stopped = True
        _answer(run, directive, "")
        raise Stopped(directive.reason or "a directive")
    else:
        accepted = "set_plan, rollback, checkpoint_now, pause, resume, stop"
        _answer(run, directive, f'kind "{directive.kind}" is unknown; accepted: {accepted}')


def _apply_own(run: Run, decision: Decision) -> None:
    """The controller is away, or back again."""
    before = run.plan
    plan = PrecisionPlan.parse(decision.plan).bind(run.sites, run.layers)
    try:
        _use(run, plan)
    except Rejected as error:
        log.error("no BF16, the run goes on in plan %d: %s", before.version, error)
        if run._lead is not None:
            run._lead.plan_before_loss = before.to_toml()
        return
    if run._lead is None:
        return
    if decision.kind == "bf16":
        log.warning("no controller: BF16 from step %d on", run.newest_step + 1)
        run._lead.act_on_loss(plan, before, run.newest_step)
    else:
        log.info("the controller is back: plan %d again", plan.version)
        run._lead.take_plan(plan, run.newest_step + 1)


def _set_plan(run: Run, directive: Directive) -> None:
    reason = ""
    failure: Exception | None = None
    plan = run.plan
    try:
        plan = _plan_of(run, directive)
        if run.capabilities.when == "live":
            _use(run, plan)
    except (Rejected, ConfigError) as error:
        reason = str(error)
    except Exception as error:
        reason, failure = _words("on_plan", error), error
    _settle(run, directive, reason)
    if reason:
        _answer(run, directive, reason)
        if failure is not None:
            raise failure
        return
    if run.capabilities.when == "restart":
        _restart(run, directive, f"plan {plan.version}: {directive.reason or ''}")
    if run._lead is not None:
        log.info("plan %d from step %d on: %s", plan.version, run.newest_step + 1, directive.reason)
        run._lead.take_plan(plan, run.newest_step + 1)
    _answer(run, directive, "")


def _roll_back(run: Run, directive: Directive) -> None:
    from gnomon.run import Rollback

    step = directive.to_step or 0
    how = run.capabilities.rollback
    if how == "live" and run.capabilities.when == "restart":
        how = "restart"  # the checkpoint comes with a plan
    uri = directive.checkpoint_uri or ""
    # A live run's own function knows its checkpoints. Rank 0 has reported them from its own disk.
    there = run._ranks.share(how != "restart" or is_there(uri))
    before = run.plan
    reason = ""
    failure: Exception | None = None
    plan = before
    try:
        if how == "none":
            raise Rejected("this trainer cannot go back to a checkpoint")
        if not there:
            raise Rejected(f"the checkpoint {uri} is not there any more")
        plan = _plan_of(run, directive) if directive.plan else run._plan_of_checkpoint(directive)
        if how == "live":
            assert run._on_rollback is not None
            _use(run, plan)
            run._on_rollback(Rollback(step, uri, plan))
    except (Rejected, ConfigError) as error:
        reason = str(error)
        if run.plan is not before:
            _use(run, before)
    except Exception as error:
        # What was loaded half-way is neither state: the process ends, and begins again from its
        # newest checkpoint.
        reason, failure = _words("on_rollback", error), error
    _settle(run, directive, reason)
    if reason:
        _answer(run, directive, reason)
        if failure is not None:
            raise failure
        return
    if how == "restart":
        _restart(run, directive, f"rollback to step {step}: {directive.reason or ''}")
    log.warning("rolled back from step %d to step %d: %s", run.newest_step, step, directive.reason)
    if run._lead is not None:
        run._lead.roll_back(directive, run.newest_step, plan)
    run._rolled_back_to(step)


def _checkpoint_now(run: Run, directive: Directive) -> None:
    if run._on_checkpoint is None:
        return _answer(run, directive, "this trainer takes no checkpoints between its own")
    _write_checkpoint(run, directive)
    _answer(run, directive, "")


def _write_checkpoint(run: Run, directive: Directive) -> None:
    """A function that fails rejects the directive: it must not come again at each restart."""
    assert run._on_checkpoint is not None
    try:
        run._on_checkpoint()
    except Exception as error:
        _answer(run, directive, _words("on_checkpoint", error))
        raise


def _words(function: str, error: Exception) -> str:
    return f"{function} raised {type(error).__name__}: {error}"


def _plan_of(run: Run, directive: Directive) -> PrecisionPlan:
    """Raises ConfigError where the plan does not fit the model."""
    where = f"directive {directive.number}"
    plan = PrecisionPlan.parse(directive.plan or "", where)
    return plan.with_version(directive.plan_version or 0).bind(run.sites, run.layers, where)


def _use(run: Run, plan: PrecisionPlan) -> None:
    """Raises what `on_plan` raises; then the plan is as it was."""
    if run._on_plan is not None:
        run._on_plan(plan)
    run._set_plan(plan)


def _settle(run: Run, directive: Directive, reason: str) -> None:
    """All ranks must have come to the same: a part of them under another plan trains nonsense."""
    its: str = run._ranks.share(reason)
    if bool(its) == bool(reason):
        return
    what = f"directive {directive.number} ({directive.kind})"
    there = f"rejected ({its})" if its else "accepted"
    here = f"rejected ({reason})" if reason else "accepted"
    raise RanksDisagree(
        f"{what} is {there} on rank 0 and {here} on rank {run._ranks.rank}: the ranks are in "
        "different plans now. Start the run again from its newest checkpoint"
    )


def _restart(run: Run, directive: Directive, reason: str) -> None:
    """Keeps the steps so far in a checkpoint, where a rollback does not drop them anyway."""
    if directive.kind != "rollback" and run._on_checkpoint is not None:
        _write_checkpoint(run, directive)
    if run._lead is not None:
        run._lead.defer(directive, run.newest_step)
    log.warning("restart this trainer: %s", reason)
    raise RestartRequired(reason)


def _answer(run: Run, directive: Directive, reason: str) -> None:
    if run._lead is not None:
        state = "rejected" if reason else "applied"
        if reason:
            log.error("directive %d is rejected: %s", directive.number, reason)
        run._lead.acknowledge(directive, state, run.newest_step, reason)
