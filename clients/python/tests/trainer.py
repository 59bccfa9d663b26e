"""Runs of a test, in one directory under one controller."""

from __future__ import annotations

import pathlib
from typing import Any

from daemon import Daemon, wait_for

import gnomon
from gnomon.records import Directive
from gnomon.run import Run

SITES = [f"model.layers.{i}.mlp.up_proj" for i in range(3)]
PLAN = 'version = 1\n[[rule]]\nmatch = "*"\ngemms = "fp8"\n'


BLOCK = '[[rule]]\nmatch = "*"\ngemms = "fp8"\nrecipe = "block"\n'


class Trainer:
    """Begins runs of one directory, and closes what a test leaves open."""

    def __init__(self, daemon: Daemon, folder: pathlib.Path) -> None:
        self.daemon = daemon
        self.folder = folder
        self.runs: list[Run] = []

    def init(self, **arguments: Any) -> Run:
        given = {
            "project": "x",
            "name": "y",
            "url": self.daemon.url,
            "sites": SITES,
            "plan": PLAN,
            "directory": self.folder,
            "flush_seconds": 10.0,
            **arguments,
        }
        run = gnomon.init(**given)
        self.runs.append(run)
        return run

    def wait_for_steps(self, count: int, run: str = "run-1") -> list[dict[str, Any]]:
        def steps() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = self.daemon.get(f"/v1/runs/{run}/steps")
            return rows if len(rows) >= count else []

        rows: list[dict[str, Any]] = wait_for(steps, 15, f"{count} steps of {run}")
        return rows


def take_steps(run: Run, count: int, loss: Any = 2.0) -> None:
    for _ in range(count):
        with run.step() as s:
            s.log(loss=loss, grad_norm=1.0)


def take_steps_until(run: Run, condition: Any, seconds: float = 15) -> None:
    def step() -> Any:
        take_steps(run, 1)
        return condition()

    wait_for(step, seconds)


class Inbox:
    """Directives of a test's own, for what a person cannot order."""

    def __init__(self, *left: Directive) -> None:
        self.left = list(left)

    def pop(self) -> Directive | None:
        return self.left.pop(0) if self.left else None

    def close(self) -> list[Directive]:
        return self.left


def rollback(number: int, to_step: int, uri: str, plan: str = "", version: int = 0) -> Directive:
    its = Directive(number, "rollback", checkpoint_uri=uri, to_step=to_step, reason="spoiled")
    its.plan, its.plan_version = plan, version
    return its


def offline(folder: pathlib.Path, *left: Directive, **arguments: Any) -> Run:
    given = {"project": "x", "name": "y", "sites": SITES, "plan": PLAN, "mode": "offline"}
    run = gnomon.init(**{**given, "directory": folder, **arguments})
    assert run._lead is not None
    run._lead._inbox = Inbox(*left)  # type: ignore[assignment]
    return run


def answers(run: Run) -> list[str]:
    assert run._lead is not None
    run._lead.outbox.flush()
    return [f"{it.target} {it.body}" for it in run._lead.spool.others()]
