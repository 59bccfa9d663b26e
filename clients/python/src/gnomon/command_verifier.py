"""A verifier that runs a command for each replay, in whatever language its trainer is.

The operator's file says which command, an argument list without a shell:

    [command]
    argv = ["python", "replay.py", "--from={checkpoint}", "--steps={steps}", "--arm={arm}",
            "--out={out}"]
    timeout_seconds = 3600          # of one replay
    memory_bytes_max = 0            # of its address space; 0: no limit
    file_bytes_max = 1073741824     # of each file that it writes
    log_directory = "replay-logs"   # what it prints, a file for each replay; the newest 50 stay
    arms = ["bf16", "same"]         # empty lists: anything
    checkpoint_formats = []
    frameworks = []
    exact_replay = false            # whether the same replay gives the same bits again

Placeholders: {checkpoint} {end_checkpoint} {first_step} {steps} {arm} {plan} {perturb} {out}, and
{perturb_scale} {evaluate_endpoints} (1 or 0). {plan} is a file with the arm's plan, or empty where
the arm runs the plan that the checkpoint was made under. The command writes to {out} a JSON object
with the members of `gnomon.ReplayResult`; `steps` are objects with step, loss, grad_norm,
batch_hash. It may also say `window` and `arm`, which are then compared. It ends with status 0;
status 69 says that it cannot do such a replay.

Values of the network are arguments of this command and nothing else: one that could be taken for
an option is refused, and so is a checkpoint that is no absolute path or URI.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gnomon.errors import ConfigError
from gnomon.json_record import BadRecord, from_value
from gnomon.lease_loop import Abilities
from gnomon.plan import PrecisionPlan
from gnomon.replay_check import check_result
from gnomon.verify import ReplayFailed, ReplayResult, ReplayTask, Unsupported

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STATUS_UNSUPPORTED = 69  # EX_UNAVAILABLE of sysexits.h
PLACEHOLDERS = (
    "checkpoint", "end_checkpoint", "first_step", "steps", "arm", "plan", "perturb",
    "perturb_scale", "evaluate_endpoints", "out",
)  # fmt: skip
_PLACEHOLDER = re.compile(r"\{([a-z_]*)\}")
_URI = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+")
_RESULT_BYTES_MAX = 64 << 20
_TAIL_BYTES = 2000
_LOGS_MAX = 50
_TERM_SECONDS = 5.0


@dataclass
class CommandOptions:
    """[command] of the operator's file."""

    argv: list[str]
    timeout_seconds: float = 3600.0
    memory_bytes_max: int = 0
    file_bytes_max: int = 1 << 30
    log_directory: str = "replay-logs"
    arms: list[str] = field(default_factory=list)
    checkpoint_formats: list[str] = field(default_factory=list)
    frameworks: list[str] = field(default_factory=list)
    exact_replay: bool = False

    @staticmethod
    def load(path: str | os.PathLike[str]) -> CommandOptions:
        """Raises ConfigError."""
        file = os.fspath(path)
        try:
            document = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            options = from_value(CommandOptions, document["command"])
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, BadRecord) as error:
            raise ConfigError("command", file, f"a file with [command] ({error})") from None
        except KeyError:
            raise ConfigError("command", file, "a file with [command]") from None
        known = {each.name for each in dataclasses.fields(CommandOptions)}
        for key in document["command"]:
            if key not in known:
                accepted = "one of " + ", ".join(sorted(known))
                raise ConfigError(f"{file}: command.{key}", "an unknown key", accepted)
        options.check(file)
        return options

    def check(self, file: str) -> None:
        if not self.argv or not self.argv[0] or _PLACEHOLDER.search(self.argv[0]):
            accepted = "a program and its arguments; the program is no placeholder"
            raise ConfigError(f"{file}: command.argv", repr(self.argv[:1]), accepted)
        used = {name for each in self.argv for name in _PLACEHOLDER.findall(each)}
        for name in sorted(used - set(PLACEHOLDERS)):
            accepted = "one of " + ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise ConfigError(f"{file}: command.argv", f"{{{name}}}", accepted)
        for name in ("checkpoint", "out"):
            if name not in used:
                raise ConfigError(f"{file}: command.argv", "nothing", f"{{{name}}} in an argument")
        if not self.timeout_seconds > 0:
            value = str(self.timeout_seconds)
            raise ConfigError(f"{file}: command.timeout_seconds", value, "more than 0")


class CommandReplayer:
    """roots: folders outside which no checkpoint is read; empty: all are."""

    def __init__(self, options: CommandOptions, roots: Sequence[str] = ()) -> None:
        self._options = options
        self._roots = [os.path.realpath(root) for root in roots]
        self._logs = pathlib.Path(options.log_directory)
        self._logs.mkdir(parents=True, exist_ok=True)

    def abilities(self) -> Abilities:
        it = self._options
        lists = (it.arms, it.checkpoint_formats, it.frameworks)
        return Abilities(*lists, exact_replay=it.exact_replay)

    def close(self) -> None:
        pass

    def replay(self, task: ReplayTask) -> ReplayResult:
        if self._options.arms and task.arm not in self._options.arms:
            raise Unsupported(f"arm {task.arm}; this verifier does {', '.join(self._options.arms)}")
        for name, uri in (("checkpoint", task.checkpoint), ("end_checkpoint", task.end_checkpoint)):
            self._check_uri(name, uri)
        log = self._log_file(task)
        with tempfile.TemporaryDirectory(prefix="gnomon-replay-") as folder:
            out = os.path.join(folder, "result.json")
            argv = self._argv(task, folder, out)
            status = self._run(argv, log, task)
            if status == STATUS_UNSUPPORTED:
                raise Unsupported(_tail(log) or "the command ended with status 69")
            if status != 0:
                raise ReplayFailed(f"the command {_how_it_ended(status)}: {_tail(log)}")
            return check_result(task, read_result(out, task))

    def _argv(self, task: ReplayTask, folder: str, out: str) -> list[str]:
        plan = ""
        of_arm = PrecisionPlan.bf16() if task.arm.startswith("bf16") else task.plan
        if of_arm is not None:
            plan = os.path.join(folder, "plan.toml")
            pathlib.Path(plan).write_text(of_arm.to_toml(), encoding="utf-8")
        values = {
            "checkpoint": task.checkpoint,
            "end_checkpoint": task.end_checkpoint,
            "first_step": str(task.first_step),
            "steps": str(task.steps),
            "arm": task.arm,
            "plan": plan,
            "perturb": str(task.perturb),
            "perturb_scale": repr(task.perturb_scale),
            "evaluate_endpoints": str(int(task.evaluate_endpoints)),
            "out": out,
        }
        return [
            _PLACEHOLDER.sub(lambda match: values[match.group(1)], each)
            for each in self._options.argv
        ]

    def _check_uri(self, name: str, uri: str) -> None:
        if not uri and name == "end_checkpoint":
            return
        plain = uri.isprintable() and (os.path.isabs(uri) or _URI.fullmatch(uri) is not None)
        if not plain:
            raise ReplayFailed(f"{name} is {uri!r:.200}; expected an absolute path or a URI")
        if self._roots and not any(
            os.path.commonpath([root, os.path.realpath(uri)]) == root for root in self._roots
        ):
            raise ReplayFailed(
                f"{name} {uri} is not below a folder that this verifier may read "
                f"({', '.join(self._roots)})"
            )

    def _run(self, argv: list[str], log: pathlib.Path, task: ReplayTask) -> int:
        """Its status, negative for a signal. Raises LeaseLost and ReplayFailed."""
        deadline = time.monotonic() + self._options.timeout_seconds
        with open(log, "wb") as output:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ReplayFailed(f"the command cannot be started: {error}") from None
        try:
            self._limit(process.pid)
            while True:
                task.check()
                try:
                    return process.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    pass
                if time.monotonic() > deadline:
                    raise ReplayFailed(
                        f"the command was still running after {self._options.timeout_seconds:g} s "
                        f"(timeout_seconds) and was ended: {_tail(log)}"
                    )
        finally:
            _end(process)

    def _limit(self, pid: int) -> None:
        limits = {
            resource.RLIMIT_AS: self._options.memory_bytes_max,
            resource.RLIMIT_FSIZE: self._options.file_bytes_max,
            resource.RLIMIT_CORE: 1,
        }
        with contextlib.suppress(ProcessLookupError):
            for kind, most in limits.items():
                if most > 0:
                    resource.prlimit(pid, kind, (most, most))

    def _log_file(self, task: ReplayTask) -> pathlib.Path:
        logs = sorted(self._logs.glob("*.log"), key=lambda path: path.stat().st_mtime)
        for oldest in logs[: max(len(logs) - _LOGS_MAX + 1, 0)]:
            oldest.unlink(missing_ok=True)
        run = re.sub(r"[^A-Za-z0-9_.-]", "_", task.run)[:60].lstrip(".")
        return self._logs / f"{run}-replay-{task.replay}.log"


def read_result(path: str, task: ReplayTask) -> ReplayResult:
    """The command's result. Raises ReplayFailed with the member that is wrong."""
    try:
        with open(path, "rb") as file:
            text = file.read(_RESULT_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ReplayFailed("the command wrote no result to {out}") from None
    if len(text) > _RESULT_BYTES_MAX:
        raise ReplayFailed(f"the result has more than {_RESULT_BYTES_MAX} bytes")
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise ReplayFailed(f"the result is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ReplayFailed(f"the result is {type(value).__name__}; expected a JSON object")
    for name, expected in (("window", task.window), ("arm", task.arm)):
        said = value.pop(name, expected)
        if said != expected:
            raise ReplayFailed(
                f"the result is of {name} {said!r}; the replay is of {name} {expected!r}"
            )
    known = [each.name for each in dataclasses.fields(ReplayResult)]
    for name in value:
        if name not in known:
            raise ReplayFailed(f"the result has a member {name!r}; expected {', '.join(known)}")
    try:
        return from_value(ReplayResult, value)
    except BadRecord as error:
        raise ReplayFailed(f"the result is wrong: {error}") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the command and what it has started."""
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    hints = {
        "SIGKILL": " (out of memory?)",
        "SIGXFSZ": " (file_bytes_max)",
        "SIGSEGV": " (memory_bytes_max?)",
    }
    return f"was killed by {name}{hints.get(name, '')}"


def _tail(log: pathlib.Path) -> str:
    """The last lines of what the command printed."""
    with open(log, "rb") as file:
        file.seek(max(os.path.getsize(log) - _TAIL_BYTES, 0))
        text = file.read(_TAIL_BYTES).decode(errors="replace").strip()
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
