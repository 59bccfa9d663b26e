"""A verifier's function in a process of its own: one that hangs or dies is ended and reported.

The process lives for many replays, so a model that the function keeps is loaded once. Both sides
write lines of JSON to a pair of sockets; what the function prints goes where this program's does.

    python -m gnomon.replay_process FD module:function
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from gnomon.errors import ConfigError, GnomonError
from gnomon.json_record import from_value, to_value
from gnomon.lease_loop import Abilities, FunctionReplayer
from gnomon.records import ReplayTask as TaskMessage
from gnomon.verify import LeaseLost, ReplayFailed, ReplayResult, ReplayTask, Unsupported, Verifier

_START_SECONDS = 600.0
_LOST_SECONDS = 10.0
_LOOK_SECONDS = 0.2


def load_verifier(target: str) -> Verifier:
    """The verifier at `module:function` or `file.py:function`. Raises ConfigError."""
    place, _, name = target.rpartition(":")
    accepted = "module:function or file.py:function, of a function with @gnomon.verifier"
    if not place or not name:
        raise ConfigError("function", repr(target), accepted)
    if place.endswith(".py"):
        path = pathlib.Path(place).resolve()
        sys.path.insert(0, str(path.parent))
        place = path.stem
        if not path.is_file():
            raise ConfigError("function", repr(target), accepted)
    else:
        sys.path.insert(0, os.getcwd())
    module = importlib.import_module(place)
    found = getattr(module, name, None)
    if isinstance(found, Verifier):
        return found
    if callable(found):
        return Verifier(found)
    raise ConfigError("function", repr(target), accepted)


class ProcessReplayer:
    """timeout_seconds: of one replay. Raises ConfigError where the function cannot be loaded."""

    def __init__(self, target: str, timeout_seconds: float) -> None:
        self._target = target
        self._timeout = timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._abilities = Abilities()
        self._start()

    def abilities(self) -> Abilities:
        return self._abilities

    def replay(self, task: ReplayTask) -> ReplayResult:
        if self._process is None or self._process.poll() is not None:
            try:
                self._start()
            except ConfigError as error:  # it did load once: its storage or its device may be away
                raise ReplayFailed(str(error)) from None
        self._send({"task": to_value(message_of_task(task))})
        deadline = time.monotonic() + self._timeout
        lost_at: float | None = None
        while True:
            try:
                task.check()
            except LeaseLost:
                if lost_at is None:
                    lost_at = time.monotonic()
                    self._send({"lost": True})
                if time.monotonic() - lost_at > _LOST_SECONDS:
                    self.close()  # the function does not call task.check()
                    raise
            if time.monotonic() > deadline:
                self.close()
                raise ReplayFailed(
                    f"the replay was still running after {self._timeout:g} s and was ended "
                    "(--timeout)"
                )
            for message in self._receive(_LOOK_SECONDS):
                if "progress" in message:
                    task._progress(int(message["progress"]))
                elif "result" in message:
                    return from_value(ReplayResult, message["result"])
                else:
                    failure = _error_of(message)
                    if isinstance(failure, ReplayFailed):
                        # A device's error may stick, and a model is left as it was in the middle.
                        self.close()
                    raise failure

    def close(self) -> None:
        process, self._process = self._process, None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self) -> None:
        self.close()
        self._buffer = b""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "gnomon.replay_process", str(theirs.fileno())]
        # A session of its own: Ctrl-C is for this program, which lets the replay end first.
        self._process = subprocess.Popen(
            [*command, self._target],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._socket = ours
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            for message in self._receive(_LOOK_SECONDS):
                if "ready" in message:
                    self._abilities = from_value(Abilities, message["ready"])
                    return
                accepted = f"one that can be loaded; it raised {message.get('reason')}"
                raise ConfigError("function", repr(self._target), accepted)
        self.close()
        raise ConfigError("function", repr(self._target), f"one that loads in {_START_SECONDS} s")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._socket is not None
        with contextlib.suppress(OSError):  # a process that has died is found by _receive
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self, timeout: float) -> Iterator[dict[str, Any]]:
        """Messages that come within `timeout`. Raises ReplayFailed where the process has died."""
        assert self._socket is not None
        assert self._process is not None
        if select.select([self._socket], [], [], timeout)[0]:
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                status = self._process.wait()
                self.close()
                raise ReplayFailed(f"the replay's process {_how_it_ended(status)}")
            self._buffer += data
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            yield json.loads(line)


def message_of_task(task: ReplayTask) -> TaskMessage:
    """The API's message of a task."""
    message = TaskMessage(
        task.run, task.replay, task.window, task.attempt, task.arm, task.checkpoint,
        task.start_step, task.steps,
    )  # fmt: skip
    message.plan = task.plan.to_toml() if task.plan is not None else None
    message.purpose = task.purpose or None
    message.end_checkpoint_uri = task.end_checkpoint or None
    message.evaluate_endpoints = task.evaluate_endpoints
    message.perturb = task.perturb
    message.perturb_scale = task.perturb_scale
    return message


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status} in the middle of it"
    name = signal.Signals(-status).name
    hint = ": out of memory?" if name == "SIGKILL" else ""
    return f"was killed by {name} in the middle of it{hint}"


def _error_of(message: dict[str, Any]) -> GnomonError:
    kind: type[GnomonError] = {"unsupported": Unsupported, "lost": LeaseLost}.get(
        str(message.get("error")), ReplayFailed
    )
    return kind(str(message.get("reason")))


class _Child:
    """The other side of the sockets."""

    def __init__(self, file: int) -> None:
        self._socket = socket.socket(fileno=file)
        self._lock = threading.Lock()
        self._lost = threading.Event()
        self._tasks: list[TaskMessage] = []
        self._arrived = threading.Condition()

    def serve(self, target: str) -> int:
        try:
            replayer = FunctionReplayer(load_verifier(target))
            self._send({"ready": to_value(replayer.abilities())})
        except Exception as error:
            self._send({"error": "config", "reason": f"{type(error).__name__}: {error}"})
            return 2
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._tasks)
                message = self._tasks.pop(0)
            self._send(self._answer(replayer, message))

    def _answer(self, replayer: FunctionReplayer, message: TaskMessage) -> dict[str, Any]:
        try:
            task = ReplayTask.of(message, self._check, lambda done: self._send({"progress": done}))
            return {"result": to_value(replayer.replay(task))}
        except Unsupported as error:
            return {"error": "unsupported", "reason": str(error)}
        except LeaseLost as error:
            return {"error": "lost", "reason": str(error)}
        except Exception as error:
            if not isinstance(error, GnomonError) or error.__cause__ is not None:
                sys.excepthook(type(error), error, error.__traceback__)
            return {"error": "failed", "reason": str(error)}

    def _check(self) -> None:
        if self._lost.is_set():
            raise LeaseLost("the lease is lost")

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                message = json.loads(line)
                if "lost" in message:
                    self._lost.set()
                    continue
                self._lost.clear()  # here, as the order of messages shows which lease was lost
                with self._arrived:
                    self._tasks.append(from_value(TaskMessage, message["task"]))
                    self._arrived.notify()
        os._exit(0)  # the verifier is gone


if __name__ == "__main__":
    sys.exit(_Child(int(sys.argv[1])).serve(sys.argv[2]))
