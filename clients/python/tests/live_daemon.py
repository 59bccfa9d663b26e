"""A real gnomond for one test: its own ledger and port, ended with the test."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time
import urllib.request
from types import TracebackType
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[3]


def binary() -> pathlib.Path:
    """Where gnomond is. Skips the test where it is not built."""
    folder = os.environ.get("GNOMON_BIN", str(ROOT / "build" / "release" / "bin"))
    path = pathlib.Path(folder) / "gnomond"
    if not path.exists():
        pytest.skip(f"{path} is not built; GNOMON_BIN names another folder")
    return path


class LiveDaemon:
    """`with LiveDaemon(tmp_path, policy) as daemon:`; `daemon.url` is where it listens."""

    def __init__(self, folder: pathlib.Path, policy: str = "") -> None:
        self.url = ""
        self._folder = folder
        (folder / "policy.toml").write_text(policy, encoding="utf-8")

    def __enter__(self) -> LiveDaemon:
        port_file = self._folder / "gnomond.port"
        arguments = ["--listen", "127.0.0.1:0", "--port-file", str(port_file)]
        arguments += ["--ledger", str(self._folder / "ledger.sqlite")]
        arguments += ["--policy", str(self._folder / "policy.toml")]
        log = open(self._folder / "gnomond.log", "wb")  # noqa: SIM115
        self._process = subprocess.Popen([str(binary()), *arguments], stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not port_file.exists() or not port_file.read_text():
            assert self._process.poll() is None, (self._folder / "gnomond.log").read_text()
            assert time.monotonic() < deadline, "gnomond did not come up"
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{port_file.read_text().strip()}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    def get(self, path: str) -> Any:
        """The JSON of a GET."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that a POST answers with."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def wait_for(self, path: str, holds: Any, seconds: float = 60) -> Any:
        """The first answer of a GET for which `holds` is true."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self.get(path)
            if holds(answer):
                return answer
            assert time.monotonic() < deadline, f"{path} stays {json.dumps(answer)[:2000]}"
            time.sleep(0.1)
