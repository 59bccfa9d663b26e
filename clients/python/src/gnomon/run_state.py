"""What a run must remember besides its checkpoints: `state.json`, replaced as a whole."""

from __future__ import annotations

import json
import os
import pathlib
from dataclasses import dataclass, field

from gnomon.errors import ConfigError
from gnomon.json_record import BadRecord, from_json, to_value
from gnomon.records import AttemptStart, Directive, DirectiveAck

CHECKPOINTS_MAX = 64


@dataclass
class KnownCheckpoint:
    """A checkpoint that was reported."""

    attempt: int
    step: int
    uri: str
    plan_version: int


@dataclass
class RunState:
    """The state of one run.

    attempts: 1, 2, ... without gaps.
    last_directive: the number applied or rejected last, with what was answered in `last_ack`.
    plan: TOML, in force for the next step, whatever a checkpoint says.
    checkpoints: the newest ones that lead to where the run is, oldest first.
    plans: TOML by version, of those that the newest checkpoints may have been made under.
    pending: a directive that takes effect when the trainer is started again, and its answer then.
    """

    project: str
    name: str
    attempts: list[AttemptStart] = field(default_factory=list)
    last_directive: int = 0
    last_ack: DirectiveAck | None = None
    newest_plan_version: int = 0
    base_plan: str = ""
    plan: str = ""
    plans: dict[str, str] = field(default_factory=dict)
    paused: bool = False
    finished: str = ""
    checkpoints: list[KnownCheckpoint] = field(default_factory=list)
    pending: Directive | None = None
    pending_ack: DirectiveAck | None = None

    @property
    def attempt(self) -> int:
        return self.attempts[-1].attempt if self.attempts else 0

    @staticmethod
    def load(file: pathlib.Path) -> RunState | None:
        """None where there is no file. Raises ConfigError for one that is damaged."""
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            return from_json(RunState, text)
        except BadRecord as error:
            accepted = f"a state that this client wrote ({error}); or another directory"
            raise ConfigError("directory", str(file), accepted) from None

    def save(self, file: pathlib.Path) -> None:
        """Raises OSError."""
        write_atomically(file, json.dumps(to_value(self), indent=1))

    def set_plan(self, version: int, text: str) -> None:
        """The plan in force from now on."""
        self.plan = text
        self.newest_plan_version = max(self.newest_plan_version, version)
        self.plans.pop(str(version), None)
        self.plans[str(version)] = text
        for oldest in list(self.plans)[:-CHECKPOINTS_MAX]:
            del self.plans[oldest]

    def add_checkpoint(self, checkpoint: KnownCheckpoint) -> None:
        self.checkpoints = [it for it in self.checkpoints if it.uri != checkpoint.uri]
        self.checkpoints.append(checkpoint)
        self.checkpoints = self.checkpoints[-CHECKPOINTS_MAX:]

    def roll_back(self, step: int) -> None:
        """Forgets the checkpoints of the branch that is left behind."""
        self.checkpoints = [it for it in self.checkpoints if it.step <= step]

    def newest_checkpoint(self) -> KnownCheckpoint | None:
        """The newest one that is still there, as far as its URI is a path."""
        for checkpoint in reversed(self.checkpoints):
            if is_there(checkpoint.uri):
                return checkpoint
        return None


def is_there(uri: str) -> bool:
    """Whether a start may load this checkpoint: what is not a path is believed to be there."""
    return "://" in uri or os.path.exists(uri)


def write_atomically(file: pathlib.Path, text: str) -> None:
    """Writes to a temporary name, syncs and renames. Raises OSError."""
    temporary = file.with_suffix(".new")
    with open(temporary, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, file)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
