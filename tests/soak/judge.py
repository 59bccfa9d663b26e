"""The verdict over single facts: each rule is a function of what was seen, and returns what is wrong with it in words.

Nothing here asks anybody anything, so judge_test.py shows each rule a fact that breaks it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answer:
    """An answer of the daemon, and which ones the sender expected."""

    who: str
    request: str
    status: int
    expected: tuple[int, ...]
    detail: str = ""
    schema: tuple[str, ...] = ()
    seconds: float = 0.0


ANSWERED_WITHIN_SECONDS = 20.0  # nobody here waits for more than two seconds


def of_answer(answer: Answer) -> list[str]:
    """Only what was expected, only as the document says, and in time."""
    said = f"{answer.who}: {answer.request}: {answer.status}"
    complaints = [f"{said}: {problem}" for problem in answer.schema]
    if answer.status not in answer.expected:
        wanted = " or ".join(str(status) for status in answer.expected)
        complaints.append(f"{said}, expected {wanted}: {answer.detail}")
    if answer.seconds > ANSWERED_WITHIN_SECONDS:
        complaints.append(f"{said} after {answer.seconds:.1f} s")
    return complaints


@dataclass(frozen=True)
class Command:
    """A command of `gnomon` that has ended; `status` is negative after a signal, None when it did not end in time."""

    words: str
    status: int | None
    expected: tuple[int, ...]
    output: str


EXCEPTION_TEXT = re.compile(r"terminate called|std::|Traceback|Assertion .* failed|runtime error:|Sanitizer")


def of_command(command: Command) -> list[str]:
    output = command.output.strip()[-300:]
    if command.status is None:
        return [f"`{command.words}` did not end in time: {output}"]
    if command.status < 0:
        return [f"`{command.words}` ended by signal {-command.status}: {output}"]
    complaints = []
    if EXCEPTION_TEXT.search(command.output):
        complaints.append(f"`{command.words}` printed what is for programmers: {output}")
    if command.status not in command.expected:
        wanted = " or ".join(str(status) for status in command.expected)
        complaints.append(f"`{command.words}` ended with {command.status}, expected {wanted}: {output}")
    return complaints


@dataclass(frozen=True)
class Reload:
    """A SIGHUP: whether what it read was good, and what the daemon's metrics said of it within the time it had."""

    name: str
    good: bool
    successful: float | None  # gnomon_config_last_reload_successful
    taken: bool  # gnomon_config_last_reload_success_timestamp_seconds has moved on
    answers: bool = True  # the daemon still answers


def of_reload(reload: Reload) -> list[str]:
    if not reload.answers:
        return [f"after reloading ({reload.name}) the daemon does not answer"]
    if reload.good and (reload.successful != 1 or not reload.taken):
        return [f"a good configuration ({reload.name}) was not taken"]
    if not reload.good and (reload.successful != 0 or reload.taken):
        return [f"a bad configuration ({reload.name}) was taken"]
    return []


@dataclass(frozen=True)
class Rotation:
    """A certificate that was put in another's place; `served_after` is None when it was not served in time."""

    name: str
    served_after: float | None
    limit_seconds: float


def of_rotation(rotation: Rotation) -> list[str]:
    if rotation.served_after is None:
        return [f"the certificate {rotation.name} was not served within {rotation.limit_seconds:.1f} s"]
    return []


@dataclass(frozen=True)
class LogLine:
    moment: float
    level: str
    message: str
    explained: bool  # a deliberate act says that this would come


def of_log_line(line: LogLine) -> list[str]:
    if line.level in ("error", "critical") and not line.explained:
        return [line.message]
    if line.level not in ("trace", "debug") and EXCEPTION_TEXT.search(line.message):
        return [f"what is for programmers: {line.message}"]
    return []


@dataclass
class Follower:
    """The ids that one client of /v1/events saw; `resumed_from` is the id it gave, None for a fresh start."""

    resumed_from: int | None = None
    last: int | None = None
    complaints: list[str] = field(default_factory=list)

    def begin(self, resumed_from: int | None) -> None:
        self.resumed_from = self.last = resumed_from

    def see(self, identifier: int, comment: bool = False) -> None:
        """An event's id is the one before plus one; a comment repeats the newest."""
        if self.last is not None and identifier != self.last + (0 if comment else 1):
            self.complaints.append(f"{'comment' if comment else 'event'} {identifier} came behind {self.last}")
        self.last = identifier


@dataclass(frozen=True)
class Sample:
    """What the daemon's process took at one moment."""

    share: float  # of the soak
    rss_kib: int
    descriptors: int
    threads: int


def of_memory(samples: Sequence[Sample], factor: float = 1.5, margin_kib: int = 32 * 1024) -> list[str]:
    """Late in the soak not much more than after its first third, when everything has been seen once."""
    early = [sample.rss_kib for sample in samples if 0.25 <= sample.share <= 0.40]
    late = [sample.rss_kib for sample in samples if 0.85 <= sample.share <= 1.0]
    if not early or not late:
        return ["there are too few samples of the daemon's memory"]
    first, last = max(early), sorted(late)[len(late) // 2]
    if last > factor * first + margin_kib:
        return [f"the daemon's memory grew from {first} KiB after a third of the soak to {last} KiB at its end"]
    return []


def of_rest(before: Sample, after: Sample, descriptors: int = 8, threads: int = 2) -> list[str]:
    """When the clients have gone, the daemon has what it had before they came."""
    complaints = []
    if after.descriptors > before.descriptors + descriptors:
        complaints.append(f"{after.descriptors} descriptors at rest, {before.descriptors} before the clients came")
    if after.threads > before.threads + threads:
        complaints.append(f"{after.threads} threads at rest, {before.threads} before the clients came")
    return complaints


@dataclass(frozen=True)
class End:
    """How the daemon ended: by itself while it should have lived, or after SIGTERM."""

    asked: bool
    status: int | None  # negative: a signal; None: it did not end in time
    seconds: float = 0.0
    limit_seconds: float = 0.0


def of_end(end: End) -> list[str]:
    if not end.asked:
        return [f"the daemon ended by itself, with status {end.status}"]
    if end.status is None:
        return [f"the daemon did not end within {end.limit_seconds:.1f} s of SIGTERM"]
    if end.status != 0:
        return [f"after SIGTERM the daemon ended with status {end.status}"]
    return []


@dataclass(frozen=True)
class Access:
    """What a token was told that is for some runs alone, or that is over."""

    token: str
    asked: str
    status: int
    allowed: tuple[int, ...]


def of_access(access: Access) -> list[str]:
    if access.status in access.allowed:
        return []
    wanted = " or ".join(str(status) for status in access.allowed)
    return [f"the token {access.token} was answered {access.status}, not {wanted}: {access.asked}"]


@dataclass
class Orders:
    """What one trainer was told, by number: a number is one order for ever, and what was done is not ordered again."""

    told: dict[int, tuple[object, ...]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)  # acknowledged as applied, and that was answered

    def complaints(self, number: int, order: tuple[object, ...]) -> list[str]:
        complaints = []
        if self.told.setdefault(number, order) != order:
            complaints.append(f"directive {number} was {self.told[number]} and is {order}")
        if number in self.done:
            complaints.append(f"directive {number} was given again though it was acknowledged as applied")
        return complaints


@dataclass(frozen=True)
class Restart:
    """A trainer that was held and began a new attempt all the same: when a pause was ordered, if at all."""

    run: str
    paused_after: float | None
    limit_seconds: float
    resumed: bool = False  # somebody let the run go on meanwhile


def of_restart(restart: Restart) -> list[str]:
    if restart.paused_after is None and not restart.resumed:
        return [f"{restart.run} is on hold, and its new attempt was not paused within {restart.limit_seconds:.0f} s"]
    return []


@dataclass(frozen=True)
class Backups:
    """The backup folder at one moment."""

    names: tuple[str, ...]
    keep: int
    newest_seen: str = ""  # the newest that was there at the last look


def of_backups(backups: Backups) -> list[str]:
    """One more than `keep` may be there for a moment: the oldest go once the newest is good."""
    whole = sorted(name for name in backups.names if name.endswith(".sqlite"))
    complaints = []
    if len(whole) > backups.keep + 1:
        complaints.append(f"{len(whole)} backups where {backups.keep} are kept: {', '.join(whole)}")
    if backups.newest_seen and (not whole or whole[-1] < backups.newest_seen):
        complaints.append(f"the newest backup {backups.newest_seen} is gone")
    return complaints
