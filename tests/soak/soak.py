"""What all parts of a soak share: where it is, how long it lasts, who may say what, what was found."""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from excuses import Excuses
from findings import Findings, Tally


@dataclass(frozen=True)
class Times:
    """The daemon's timers, in seconds: as short as they are useful for a soak of this length."""

    series_keep: float
    retention: float
    backup_every: float
    look: float = 1.0
    drain: float = 2.0
    stop: float = 3.0
    idle: float = 5.0
    read: float = 5.0

    @staticmethod
    def of(seconds: float) -> Times:
        def share(fraction: float, least: float, most: float) -> float:
            return min(max(fraction * seconds, least), most)

        return Times(series_keep=share(0.05, 4, 45), retention=share(0.12, 12, 120), backup_every=share(0.08, 10, 120))


# When somebody is away, as shares of the soak. Nothing overlaps the last tenth, in which all must come to rest.
AWAY = {
    "receivers": ((0.18, 0.27), (0.62, 0.68)),
    "verifiers": ((0.36, 0.44), (0.74, 0.78)),
    "liar": ((0.50, 0.58),),
    "silent run": ((0.15, 0.40), (0.60, 0.80)),
}


@dataclass
class Soak:
    """One soak of one daemon."""

    folder: Path
    programs: Path  # the folder with gnomond and gnomon
    seconds: float
    seed: int
    port: int = 0
    began: float = field(default_factory=time.time)
    tokens: dict[str, str] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)
    tally: Tally = field(default_factory=Tally)
    excuses: Excuses = field(default_factory=Excuses)
    stopping: threading.Event = field(default_factory=threading.Event)  # workers end
    draining: threading.Event = field(default_factory=threading.Event)  # SIGTERM was sent
    # Held by whoever changes files that the daemon reads at SIGHUP, so that nobody else's reload meets a broken one.
    files: threading.Lock = field(default_factory=threading.Lock)
    alive: Callable[[], bool] = lambda: True  # whether the daemon's process is there
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.times = Times.of(self.seconds)

    @property
    def now(self) -> float:
        return time.time() - self.began

    @property
    def share(self) -> float:
        return self.now / self.seconds

    def daemon_is_gone(self) -> bool:
        """Asked after something failed: then that the daemon ended is the finding, and not what follows from it."""
        time.sleep(0.3)
        return self.draining.is_set() or not self.alive()

    def away(self, who: str) -> bool:
        return any(begin <= self.share < end for begin, end in AWAY[who])

    def random(self, who: str) -> random.Random:
        """A worker's own random numbers: they follow from the seed and its name, not from what others draw."""
        return random.Random(f"{self.seed}/{who}")

    def found(self, rule: str, *texts: str) -> None:
        for text in texts:
            self.findings.add(rule, self.now, text)

    def sleep(self, seconds: float) -> bool:
        """Waits; true when the workers are to end."""
        return self.stopping.wait(seconds)

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Runs a worker in a thread. An exception of it is a mistake of this program, and is told as a finding."""

        def guarded() -> None:
            try:
                work()
            except Exception:  # noqa: BLE001 - whatever it was must not be lost with the thread
                if not self.daemon_is_gone():
                    self.found("program", f"the worker {name} ended: {traceback.format_exc(limit=-4)}")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self.threads.append(thread)
        thread.start()
