"""A real gnomond for a test: GNOMON_BIN says where, by default the checkout's release build."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("GNOMON_BIN", CHECKOUT / "build" / "release" / "bin"))

# Windows of ten steps, each twenty, and leases that are given up soon.
POLICY = """
mode = "enforce"
[window]
every = 20
steps = 10
[detector]
ceiling_percent = 1.0
prior_scale_percent = 0.2
burn_in_steps = 40
[return]
quiet_windows = 2
probe_passes = 2
[verifier]
lease_ttl_seconds = 5
"""


class Daemon:
    """One gnomond on a free port. `start` after `kill` is the same ledger on the same port."""

    def __init__(self, folder: pathlib.Path, policy: str = POLICY, config: str = "") -> None:
        self.folder = folder
        self._config = config
        (folder / "policy.toml").write_text(policy)
        if config:
            (folder / "gnomond.toml").write_text(config)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, ledger: str = "ledger.sqlite") -> None:
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        with open(self.folder / "gnomond.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(BIN / "gnomond", "--ledger", self.folder / ledger),
                    *("--listen", f"127.0.0.1:{self.port}", "--port-file", port_file),
                    *("--policy", self.folder / "policy.toml"),
                    *(("--config", self.folder / "gnomond.toml") if self._config else ()),
                ],
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: port_file.exists() and port_file.read_text().strip() != "", 20)
        self.port = int(port_file.read_text())

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=20)
            self._process = None

    def get(self, target: str) -> Any:
        """Rows of a run that is not there yet are an empty list."""
        try:
            with urllib.request.urlopen(self.url + target, timeout=20) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise

    def post(self, target: str, body: Any) -> Any:
        request = urllib.request.Request(
            self.url + target,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def override(self, kind: str, run: str = "run-1", **members: Any) -> None:
        """A person's order."""
        body = {"kind": kind, "owner": "test", "reason": "a test", **members}
        self.post(f"/v1/runs/{run}/overrides", body)


def wait_for(condition: Callable[[], Any], seconds: float, what: str = "") -> Any:
    """The condition's first true value. Fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what or condition}"
        time.sleep(0.05)
    return value
