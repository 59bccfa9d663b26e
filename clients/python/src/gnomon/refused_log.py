"""Reports that the controller would not take: `refused.jsonl`, a line each, within a bound."""

from __future__ import annotations

import json
import os
import pathlib
import time

from gnomon.spool import SpoolRecord

_BYTES_MAX = 4 << 20


class RefusedLog:
    """Two files, half of the bound each: the older one is replaced."""

    def __init__(self, file: pathlib.Path, bytes_max: int = _BYTES_MAX) -> None:
        self.file = file
        self._half = bytes_max // 2

    def append(self, record: SpoolRecord, status: int, why: str) -> None:
        """Does nothing where the disk is full: the log has the reason too."""
        line = json.dumps(
            {
                "time": time.time(),
                "target": record.target,
                "status": status,
                "why": why,
                "report": record.body,
            }
        )
        try:
            if self.file.exists() and self.file.stat().st_size + len(line) > self._half:
                os.replace(self.file, self.file.with_suffix(".1.jsonl"))
            with open(self.file, "a", encoding="utf-8") as out:
                out.write(line + "\n")
        except OSError:
            pass
