"""`gnomon.init`: registers a run, or goes on with it where its directory has it."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from gnomon.connection import ClientOptions
from gnomon.errors import ConfigError
from gnomon.model import layers_of, marked_inexact, own_fingerprint, parameters_of, sites_of
from gnomon.plan import PrecisionPlan
from gnomon.ranks import Broadcast, find_ranks
from gnomon.records import Fingerprint, InjectedFault, RunRegistration, TrainerCapabilities
from gnomon.run import Capabilities, Rollback, Run, Start
from gnomon.run_state import is_there
from gnomon.supervision import Supervision, SupervisionOptions

log = logging.getLogger("gnomon")

_NAME_MAX = 200


def init(
    *,
    project: str,
    name: str,
    plan: str | os.PathLike[str] | PrecisionPlan,
    url: str | None = None,
    model: Any = None,
    sites: Sequence[str] | None = None,
    layers: int | None = None,
    framework: str = "",
    tags: Sequence[str] = (),
    checkpoint_format: str = "",
    capabilities: Capabilities | None = None,
    fingerprint: Fingerprint | None = None,
    parameters: int | None = None,
    total_steps: int = 0,
    checkpoint_every: int = 0,
    tokens_per_step: int = 0,
    seed: int = 0,
    faults: Sequence[InjectedFault] = (),
    trainer_replays: bool = False,
    trainer_confirms: bool = False,
    directory: str | os.PathLike[str] = "gnomon",
    mode: Literal["online", "offline", "disabled"] = "online",
    on_plan: Callable[[PrecisionPlan], object] | None = None,
    on_rollback: Callable[[Rollback], object] | None = None,
    on_checkpoint: Callable[[], object] | None = None,
    on_loss: Literal["continue", "bf16", "pause"] | None = None,
    grace_seconds: float | None = None,
    spool_bytes_max: int = 64 << 20,
    flush_seconds: float = 30.0,
    rank: int | None = None,
    broadcast: Broadcast | None = None,
    broadcast_every: int = 1,
) -> Run:
    """Begins the run PROJECT/NAME, or goes on with it where its directory has it.

    plan: a file, the text of a plan, or a PrecisionPlan. url: of gnomond; without it GNOMON_URL.
    model, or sites and layers: where the GEMMs are. checkpoint_every, total_steps: steps.
    directory: what is kept in DIRECTORY/NAME is the state and the reports that wait.
    mode: "offline" only writes them down; "disabled" does nothing but apply the plan.
    on_plan: called at the first step with the plan in force, then with each new one.
    on_rollback: loads a checkpoint. on_checkpoint: takes one now and reports it.
    on_loss, grace_seconds: what to do without a controller, where not the run's policy says it.
    broadcast: gives all ranks what rank 0 called it with; found where torch.distributed runs.
    Raises ConfigError for what cannot be accepted; an absent controller is no error.
    """
    ranks = find_ranks(rank, broadcast, broadcast_every)
    sites = list(sites) if sites is not None else sites_of(model)
    layers = layers_of(sites) if layers is None else layers
    capabilities = capabilities or Capabilities(
        rollback="live" if on_rollback is not None else "restart"
    )
    if capabilities.rollback == "live" and on_rollback is None:
        raise ConfigError("capabilities", 'rollback="live"', '"restart", or on_rollback=...')
    if mode not in ("online", "offline", "disabled"):
        raise ConfigError("mode", repr(mode), '"online", "offline" or "disabled"')
    bound = PrecisionPlan.of(plan).bind(sites, layers)
    callbacks = (on_plan, on_rollback, on_checkpoint)
    run = Run(bound, sites, layers, capabilities, ranks, *callbacks, flush_seconds)
    if mode == "disabled":
        return run
    ranks.require_same("the plan", bound.digest())
    if not ranks.leads:
        run._resume(ranks.share(None))
        return run
    registration = _registration(
        (project, name), bound, sites, capabilities, fingerprint or own_fingerprint(),
        checkpoint_every=checkpoint_every,
        checkpoint_format=checkpoint_format or None,
        faults=list(faults) or None,
        framework=framework or None,
        parameters=parameters_of(model) if parameters is None else parameters,
        seed=seed,
        tags=list(tags) or None,
        tokens_per_step=tokens_per_step,
        total_steps=total_steps,
        trainer_confirms=trainer_confirms or None,
        trainer_replays=trainer_replays or None,
    )  # fmt: skip
    options = SupervisionOptions(
        ClientOptions(url=url or "").with_environment(),
        registration,
        pathlib.Path(directory).absolute() / name,
    )
    options.offline = mode == "offline"
    options.on_loss, options.grace_seconds = on_loss, grace_seconds
    options.spool_bytes_max = spool_bytes_max
    _show_messages()
    lead = Supervision(options, log, run._attend)
    run._resume(ranks.share(_start_of(lead, bound)))
    run._lead_with(lead)
    return run


def _registration(
    names: tuple[str, str],
    plan: PrecisionPlan,
    sites: list[str],
    capabilities: Capabilities,
    fingerprint: Fingerprint,
    **others: Any,
) -> RunRegistration:
    """Raises ConfigError for names that the controller would refuse."""
    project, name = names
    _check_names(project, name)
    if not capabilities.exact_replay:
        fingerprint = marked_inexact(fingerprint, f"{project}/{name}")
    return RunRegistration(
        project,
        name,
        fingerprint,
        plan.to_toml(),
        sites,
        plan.layers,
        capabilities=TrainerCapabilities(**dataclasses.asdict(capabilities)),
        **others,
    )


def _start_of(lead: Supervision, plan: PrecisionPlan) -> Start:
    state = lead.state
    attempts = len(state.attempts)
    text = state.plan or plan.to_toml()
    pending = state.pending
    if pending is not None and pending.kind == "rollback":
        uri = pending.checkpoint_uri or ""
        # Where none is there, their storage may not be mounted yet: the load then fails.
        if not is_there(uri) and state.newest_checkpoint() is not None:
            lead.reject_pending(f"the checkpoint {uri} is not there any more")
            pending = None
    if pending is not None and pending.plan:
        version = pending.plan_version or 0
        text = PrecisionPlan.parse(pending.plan).with_version(version).to_toml()
    if pending is not None and pending.kind == "rollback":
        return Start(text, attempts, pending.checkpoint_uri or "", pending.to_step or 0, True)
    newest = state.newest_checkpoint()
    if newest is None:
        return Start(text, attempts)
    return Start(text, attempts, newest.uri, newest.step)


def _check_names(project: str, name: str) -> None:
    for key, value in (("project", project), ("name", name)):
        printable = 0 < len(value.encode()) <= _NAME_MAX and value.isprintable()
        if not printable or (key == "name" and ("/" in value or value in (".", ".."))):
            accepted = f"1 to {_NAME_MAX} printable bytes"
            raise ConfigError(key, repr(value), accepted + (", no slash" if key == "name" else ""))


def _show_messages() -> None:
    """Prints this client's messages where the program has not said what becomes of them."""
    if log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("gnomon: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
