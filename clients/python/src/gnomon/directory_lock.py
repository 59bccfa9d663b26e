"""One run's directory has one process at a time."""

from __future__ import annotations

import fcntl
import os
import pathlib

from gnomon.errors import ConfigError

_held: set[str] = set()


class DirectoryLock:
    """Holds FOLDER/lock until `close`. Raises ConfigError where another process has it.

    It is a record lock, which the worker processes of a data loader do not inherit.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._path = str((folder / "lock").resolve())
        accepted = "another directory or name: another trainer has this one"
        refused = ConfigError("directory", str(folder), accepted)
        if self._path in _held:  # such a lock does not bind its own process
            raise refused
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise refused from None
        _held.add(self._path)

    def close(self) -> None:
        _held.discard(self._path)
        os.close(self._file)
