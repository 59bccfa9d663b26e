"""Errors in the daemon's log that a deliberate act explains: the act names the pattern and for how long it counts."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Excuse:
    """Lines that match `pattern` between two moments (seconds since the epoch) follow from `act`."""

    act: str
    pattern: str
    begin: float
    end: float
    used: int = 0


class Excuses:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Excuse] = []

    def always(self, act: str, pattern: str) -> None:
        """For what lasts through the whole soak, such as a receiver that is never there."""
        with self._lock:
            self._all.append(Excuse(act, pattern, 0, float("inf")))

    @contextlib.contextmanager
    def during(self, act: str, pattern: str, slack_seconds: float = 3) -> Iterator[None]:
        excuse = Excuse(act, pattern, time.time() - 0.1, float("inf"))
        with self._lock:
            self._all.append(excuse)
        try:
            yield
        finally:
            excuse.end = time.time() + slack_seconds

    def explains(self, moment: float, message: str) -> bool:
        with self._lock:
            for excuse in self._all:
                if excuse.begin <= moment <= excuse.end and re.search(excuse.pattern, message):
                    excuse.used += 1
                    return True
        return False
