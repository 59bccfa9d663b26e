"""What was found, and what was counted, by all threads together."""

from __future__ import annotations

import collections
import re
import threading
from dataclasses import dataclass

MOST_OF_ONE_KIND = 20


@dataclass(frozen=True)
class Finding:
    """One thing that should not have been: which rule says so, when (seconds of the soak), and what it was."""

    rule: str
    seconds: float
    text: str

    def line(self) -> str:
        return f"{self.rule}: {self.text} (after {self.seconds:.0f} s)"


class Findings:
    """Findings without repetitions: of texts that differ in their numbers alone, the first is kept and the rest are
    counted, so that one bug that shows a thousand times is one line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], Finding] = {}
        self._repeated: collections.Counter[tuple[str, str]] = collections.Counter()
        self._of_rule: collections.Counter[str] = collections.Counter()

    def add(self, rule: str, seconds: float, text: str) -> None:
        text = " ".join(text.split())[:600]
        key = (rule, re.sub(r"[0-9a-f]{8,}|\d+", "N", text))
        with self._lock:
            self._repeated[key] += 1
            if key in self._kept or self._of_rule[rule] >= MOST_OF_ONE_KIND:
                return
            self._of_rule[rule] += 1
            self._kept[key] = Finding(rule, seconds, text)

    def __len__(self) -> int:
        return len(self._kept)

    def lines(self) -> list[str]:
        with self._lock:
            found = sorted(self._kept.items(), key=lambda item: item[1].seconds)
            return [
                finding.line() + (f" [{self._repeated[key]} times]" if self._repeated[key] > 1 else "")
                for key, finding in found
            ]


class Tally:
    """Counters by name that many threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    def of(self, prefix: str) -> dict[str, int]:
        """Counters whose name begins so, without that beginning."""
        with self._lock:
            found = {name[len(prefix) :]: count for name, count in self._counts.items() if name.startswith(prefix)}
        return dict(sorted(found.items()))
