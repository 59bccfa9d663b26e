"""A journal on disk of the reports that the controller has not acknowledged yet.

A record is in the page cache when `append` returns, so it survives the process; `sync` makes it
survive the machine. Records leave in order, once they were acknowledged. In memory stands where
reading goes on, not an index, so an hour without a controller costs disk alone.

Files: `spool-<number of its first record>.log` of lines `<crc32> <number> <target> <json>`, and
`acknowledged` with the number up to which all was delivered.
"""

from __future__ import annotations

import errno
import os
import pathlib
import threading
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_SEGMENT_BYTES_MAX = 8 << 20
_SEGMENT_BYTES_MIN = 4 << 10
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STEPS = "steps"

_sync = getattr(os, "fdatasync", os.fsync)  # macOS has the second alone


@dataclass(frozen=True)
class SpoolRecord:
    """What is to be posted to /v1/runs/{run}/`target`."""

    number: int
    target: str
    body: str


@dataclass
class _Segment:
    path: pathlib.Path
    bytes: int
    last_number: int


class Spool:
    """Thread-safe; one thread reads (`oldest`, `acknowledge`). Raises OSError of the disk."""

    def __init__(self, directory: pathlib.Path, bytes_max: int) -> None:
        self.directory = directory
        self.bytes_max = bytes_max
        self.notes: list[str] = []  # what was found damaged, in words
        self._segment_max = min(max(bytes_max // 8, _SEGMENT_BYTES_MIN), _SEGMENT_BYTES_MAX)
        self._changed = threading.Condition()
        self._segments: deque[_Segment] = deque()
        self._file = -1  # the last segment, written to
        self._dirty = False
        self._next_number = 1
        self._count = 0
        self._bytes = 0
        # Behind the last acknowledged record; and ends of the records that `oldest` gave.
        self._offset = 0
        self._given: list[tuple[int, _Segment, int]] = []
        # Few: all that are not steps.
        self._others: deque[SpoolRecord] = deque()
        self._woken = False
        directory.mkdir(parents=True, exist_ok=True)
        self._acknowledged_file = os.open(
            directory / "acknowledged", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        self._acknowledged = self._read_acknowledged()
        paths = sorted(directory.glob("spool-*.log"))
        for path in paths:
            self._open_segment(path, last=path == paths[-1])
        self._next_number = max(self._next_number, self._acknowledged + 1)
        self._drop_segments()

    def close(self) -> None:
        self.sync()
        with self._changed:
            for file in (self._file, self._acknowledged_file):
                if file >= 0:
                    os.close(file)
            self._file = self._acknowledged_file = -1

    def append(self, target: str, body: str, bytes_kept_free: int = 0) -> bool:
        """Whether the record was written; False where the spool or its disk is full."""
        return self.append_many([(target, body)], bytes_kept_free) == 1

    def append_many(self, records: Sequence[tuple[str, str]], bytes_kept_free: int = 0) -> int:
        """How many were written, from the first on. `target` has no space, `body` no newline."""
        written = 0
        with self._changed:
            while written < len(records):
                done = self._append_some(records[written:], bytes_kept_free)
                if done == 0:
                    break
                written += done
            if written:
                self._changed.notify_all()
        return written

    def oldest(self, records_max: int, bytes_max: int) -> list[SpoolRecord]:
        """The oldest records in order: at least one if there is any, within both bounds."""
        with self._changed:
            records: list[SpoolRecord] = []
            self._given = []
            size = 0
            for segment, end, record in self._read_from():
                size += len(record.body)
                if records and (len(records) >= records_max or size > bytes_max):
                    break
                records.append(record)
                self._given.append((record.number, segment, end))
            if not records and self._count:
                self._give_up_damaged()
            return records

    def acknowledge(self, number: int) -> None:
        """Everything up to `number`, which `oldest` gave, was delivered and is forgotten."""
        with self._changed:
            done = [each for each in self._given if each[0] <= number]
            if not done:
                return
            self._given = self._given[len(done) :]
            self._acknowledged, segment, self._offset = done[-1]
            self._count -= len(done)
            while self._others and self._others[0].number <= number:
                self._others.popleft()
            # Should this fail, records are sent once more after a restart, which is harmless.
            os.pwrite(self._acknowledged_file, _sealed(f"{number:020}").encode(), 0)
            while self._segments[0] is not segment:
                self._drop_first()
            self._drop_segments()
            self._changed.notify_all()

    def others(self) -> list[SpoolRecord]:
        """All records that are not steps."""
        with self._changed:
            return list(self._others)

    def sync(self) -> None:
        """Has what was appended reach the disk. Does not hold up `append`."""
        with self._changed:
            file = os.dup(self._file) if self._dirty and self._file >= 0 else -1
            self._dirty = False
        if file >= 0:
            try:
                _sync(file)
            finally:
                os.close(file)

    @property
    def count(self) -> int:
        """Records that are not acknowledged."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """On disk."""
        return self._bytes

    def wait_for_records(self, timeout: float) -> None:
        """Waits until there is a record, `wake` is called, or `timeout` seconds are over."""
        with self._changed:
            self._changed.wait_for(lambda: self._count > 0 or self._woken, timeout)
            self._woken = False

    def wait_for_urgent(self, count: int, timeout: float) -> None:
        """As `wait_for_records`, but for something other than steps, or so many records."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._others or self._count >= count or self._woken, timeout
            )
            self._woken = False

    def wait_until_empty(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout)

    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _append_some(self, records: Sequence[tuple[str, str]], kept_free: int) -> int:
        """Writes what fits the segment that is written to, in one call."""
        room = self.bytes_max - kept_free - self._bytes
        segment = self._segments[-1] if self._segments else None
        if (segment is None or segment.bytes >= self._segment_max) and not self._start_segment():
            return 0
        segment = self._segments[-1]
        room_here = min(room, self._segment_max - segment.bytes)
        lines: list[bytes] = []
        size = 0
        for target, body in records:
            line = _sealed(f"{self._next_number + len(lines)} {target} {body}").encode()
            if size + len(line) > (room_here if lines else room):
                break
            size += len(line)
            lines.append(line)
        if not lines or not self._write(b"".join(lines), segment.bytes):
            return 0
        for number, (target, body) in enumerate(records[: len(lines)], self._next_number):
            if target != STEPS:
                self._others.append(SpoolRecord(number, target, body))
        self._next_number += len(lines)
        self._count += len(lines)
        segment.bytes += size
        segment.last_number = self._next_number - 1
        self._bytes += size
        self._dirty = True
        return len(lines)

    def _write(self, data: bytes, offset: int) -> bool:
        """False when the disk is full; then the file is as it was."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file, data[done:], offset + done)
        except OSError as error:
            os.ftruncate(self._file, offset)
            if error.errno in _DISK_FULL:
                return False
            raise
        return True

    def _start_segment(self) -> bool:
        path = self.directory / f"spool-{self._next_number:020}.log"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno in _DISK_FULL:
                return False
            raise
        if self._file >= 0:
            _sync(self._file)
            os.close(self._file)
        self._file = file
        self._segments.append(_Segment(path, 0, self._next_number - 1))
        return True

    def _read_from(self) -> Iterator[tuple[_Segment, int, SpoolRecord]]:
        """Records behind the acknowledged ones, with the segment and the end of each."""
        offset = self._offset
        for segment in self._segments:
            with open(segment.path, "rb") as file:
                file.seek(offset)
                for line in file:
                    offset += len(line)
                    record = _unsealed(line)
                    if record is not None and record.number > self._acknowledged:
                        yield segment, offset, record
            offset = 0

    def _give_up_damaged(self) -> None:
        """No line that is left can be read: what is counted is lost."""
        self.notes.append(f"{self._count} records in {self.directory} are damaged and lost")
        self._count = 0
        self._others.clear()
        self._acknowledged = self._next_number - 1
        self._changed.notify_all()

    def _read_acknowledged(self) -> int:
        line = os.pread(self._acknowledged_file, 64, 0)
        if not line:
            return 0
        text = line.split(b"\n", 1)[0].decode(errors="replace")
        if _sealed(text[9:]) == text + "\n" and text[9:].isdigit():
            return int(text[9:])
        self.notes.append(
            f"{self.directory}/acknowledged is damaged: what is spooled is sent again"
        )
        return 0

    def _open_segment(self, path: pathlib.Path, last: bool) -> None:
        segment = _Segment(path, 0, 0)
        whole = 0
        with open(path, "rb") as file:
            for line in file:
                record = _unsealed(line)
                segment.bytes += len(line)
                if record is None:
                    self.notes.append(f"{path}: a damaged line was left out")
                    continue
                whole = segment.bytes
                segment.last_number = record.number
                self._next_number = max(self._next_number, record.number + 1)
                if record.number > self._acknowledged:
                    self._count += 1
                    if record.target != STEPS:
                        self._others.append(record)
        if last:
            # A torn last line would spoil the next one.
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._file, whole)
            segment.bytes = whole
        self._bytes += segment.bytes
        self._segments.append(segment)

    def _drop_segments(self) -> None:
        """Gives back segments that were delivered; the last one once it is half full."""
        while len(self._segments) > 1 and self._segments[0].last_number <= self._acknowledged:
            self._drop_first()
            self._offset = 0
        last = self._segments[-1] if self._segments else None
        if last is None or self._count or last.bytes <= self._segment_max // 2:
            return
        if self._start_segment():
            self._drop_first()
            self._offset = 0

    def _drop_first(self) -> None:
        segment = self._segments.popleft()
        self._bytes -= segment.bytes
        segment.path.unlink(missing_ok=True)


def _sealed(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _unsealed(line: bytes) -> SpoolRecord | None:
    """The record of a whole line; None where its checksum does not fit."""
    if line[-1:] != b"\n" or line[8:9] != b" ":
        return None
    text = line[9:-1]
    if line[:8] != b"%08x" % zlib.crc32(text):
        return None
    number, target, body = text.decode().split(" ", 2)
    return SpoolRecord(int(number), target, body)
