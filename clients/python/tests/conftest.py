from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterator

import pytest
from daemon import BIN, Daemon
from trainer import Trainer

from gnomon import outbox, reporter


@pytest.fixture
def daemon(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A gnomond of this test alone; what it logged is shown where the test fails."""
    if not (BIN / "gnomond").exists():
        pytest.skip(f"there is no gnomond in {BIN}: build it, or set GNOMON_BIN")
    folder = tmp_path / "daemon"
    folder.mkdir()
    its = Daemon(folder)
    yield its
    its.kill()
    print((folder / "gnomond.log").read_text())


@pytest.fixture
def trainer(daemon: Daemon, tmp_path: pathlib.Path) -> Iterator[Trainer]:
    its = Trainer(daemon, tmp_path / "gnomon")
    yield its
    for run in its.runs:
        run._close(0.1)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own variables alone say where a controller is."""
    for name in ("URL", "TOKEN", "TOKEN_FILE", "CA_FILE", "CERTIFICATE_FILE", "KEY_FILE"):
        monkeypatch.delenv(f"GNOMON_{name}", raising=False)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    logging.getLogger("gnomon").setLevel(logging.INFO)
    # Reports that are on their way for a second or two would make each test as long.
    monkeypatch.setattr(outbox, "_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(reporter, "_SEND_SECONDS", 0.1)
