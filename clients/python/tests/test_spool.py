from __future__ import annotations

import os
import pathlib
import resource
import subprocess
import sys

import pytest

from gnomon.spool import Spool


def fill(spool: Spool, first: int, last: int, target: str = "steps") -> None:
    for i in range(first, last + 1):
        assert spool.append(target, f'{{"step":{i}}}')


def bodies(spool: Spool, most: int = 10_000) -> list[str]:
    return [record.body for record in spool.oldest(most, 1 << 30)]


def test_records_leave_in_order_once_they_are_acknowledged(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    fill(spool, 1, 5)
    spool.append("checkpoints", '{"uri":"a b"}')
    fill(spool, 6, 7)
    first = spool.oldest(3, 1 << 20)
    assert [record.number for record in first] == [1, 2, 3]
    spool.acknowledge(2)
    assert [record.number for record in spool.oldest(100, 1 << 20)] == [3, 4, 5, 6, 7, 8]
    assert spool.count == 6
    assert [record.target for record in spool.others()] == ["checkpoints"]
    assert len(spool.oldest(100, 1)) == 1, "at least one, however small the bound"
    spool.oldest(100, 1 << 20)
    spool.acknowledge(8)
    assert spool.count == 0
    assert spool.others() == []
    assert spool.wait_until_empty(0)


def test_what_was_not_acknowledged_is_there_after_a_restart(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    fill(spool, 1, 10)
    spool.append("attempts", "{}")
    spool.oldest(4, 1 << 20)
    spool.acknowledge(4)
    spool.close()
    again = Spool(tmp_path, 1 << 20)
    assert again.count == 7
    assert bodies(again)[0] == '{"step":5}'
    assert [record.number for record in again.others()] == [11]
    fill(again, 12, 12)
    assert again.oldest(100, 1 << 20)[-1].number == 12
    assert again.notes == []


def test_a_process_that_is_killed_loses_nothing_that_was_appended(tmp_path: pathlib.Path) -> None:
    code = (
        "import os, pathlib, sys; from gnomon.spool import Spool\n"
        "spool = Spool(pathlib.Path(sys.argv[1]), 1 << 20)\n"
        "[spool.append('steps', str(i)) for i in range(1000)]\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert bodies(Spool(tmp_path, 1 << 20)) == [str(i) for i in range(1000)]


def test_a_torn_last_line_is_dropped_and_the_next_one_is_whole(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    fill(spool, 1, 2)
    spool.append("steps", "x" * 500)
    spool.close()
    (path,) = tmp_path.glob("spool-*.log")
    os.truncate(path, path.stat().st_size - 4)
    again = Spool(tmp_path, 1 << 20)
    assert again.notes
    fill(again, 9, 9)
    assert bodies(again) == ['{"step":1}', '{"step":2}', '{"step":9}']
    again.close()
    assert Spool(tmp_path, 1 << 20).notes == [], "nothing of the torn line is left"


def test_a_damaged_line_is_left_out_and_said(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    fill(spool, 1, 3)
    spool.close()
    (path,) = tmp_path.glob("spool-*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    again = Spool(tmp_path, 1 << 20)
    assert "damaged line" in again.notes[0]
    assert bodies(again) == ['{"step":1}', '{"step":3}']
    again.oldest(10, 1 << 20)
    again.acknowledge(3)
    assert again.count == 0


def test_damage_that_comes_later_does_not_stop_the_others(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    fill(spool, 1, 3)
    (path,) = tmp_path.glob("spool-*.log")
    path.write_bytes(b"x" * path.stat().st_size)
    assert bodies(spool) == []
    assert "lost" in spool.notes[0]
    assert spool.count == 0
    fill(spool, 4, 4)
    assert spool.count == 1


def test_a_damaged_acknowledgement_sends_everything_again(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    fill(spool, 1, 3)
    spool.oldest(3, 100)
    spool.acknowledge(2)
    spool.close()
    (tmp_path / "acknowledged").write_text("00000000 00000000000000000002\n")
    again = Spool(tmp_path, 1 << 20)
    assert again.count == 3
    assert "damaged" in again.notes[0]


def test_the_bound_holds_and_space_comes_back(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path, 64 << 10)
    body = "x" * 100
    written = spool.append_many([("steps", body)] * 10_000)
    assert 0 < written < 10_000
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("spool-*.log"))
    assert on_disk == spool.size_bytes <= 64 << 10
    assert not spool.append("steps", body)
    assert not spool.append("notices", body, 0)
    spool.oldest(written, 1 << 20)
    spool.acknowledge(written)
    assert spool.size_bytes < 16 << 10
    assert spool.append("steps", body, bytes_kept_free=32 << 10)
    assert spool.append_many([("steps", body)] * 10_000, 32 << 10) > 0
    assert spool.size_bytes <= 32 << 10


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: pathlib.Path) -> None:
    code = (
        "import pathlib, resource, signal, sys; from gnomon.spool import Spool\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "spool = Spool(pathlib.Path(sys.argv[1]), 1 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "print(sum(spool.append('steps', 'x' * 100) for i in range(100)), spool.count)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, check=True)
    written, count = map(int, out.stdout.split())
    assert written == count == 3999 // 118
    again = Spool(tmp_path, 1 << 20)
    assert again.count == count
    assert again.notes == []


@pytest.mark.parametrize("records", [200_000])
def test_memory_does_not_grow_with_what_waits(tmp_path: pathlib.Path, records: int) -> None:
    spool = Spool(tmp_path, 64 << 20)
    spool.append_many([("steps", "x" * 200)] * 1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    part = [("steps", "x" * 200)] * 1000
    for _ in range(records // 1000):
        spool.append_many(part)
    spool.oldest(5000, 1 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert spool.count == records + 1000
