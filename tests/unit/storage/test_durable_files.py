"""Each write is complete or has no effect, whichever step of it fails or is the last."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.unit.storage.faulty_disk import Fault, FaultyDisk, Killed, disk
from topics.storage.checked_lines import checked_line, read_lines
from topics.storage.durable_files import AppendFile, replace_file

OLD, NEW = b"old " * 2000, b"new " * 3000
RECORDS = [checked_line(b"%d " % number * 100) for number in range(6)]


def steps_of_a_replacement(path: Path) -> int:
    path.write_bytes(OLD)
    with disk(FaultyDisk(Fault.FULL, first=0)) as counted:
        replace_file(path, NEW)
    return counted.calls


@pytest.mark.parametrize("fault", list(Fault))
def test_a_replaced_file_has_its_old_or_its_new_content(fault: Fault, tmp_path: Path) -> None:
    path = tmp_path / "state"
    steps = steps_of_a_replacement(path)
    assert steps >= 5
    for step in range(1, steps + 1):
        for seed in range(5):
            path.write_bytes(OLD)
            with (
                disk(FaultyDisk(fault, step, seed=seed)),
                contextlib.suppress(OSError, Killed),
            ):
                replace_file(path, NEW)
                assert path.read_bytes() == NEW
            assert path.read_bytes() in (OLD, NEW), (step, seed)
            if fault is not Fault.KILLED:
                assert [one.name for one in tmp_path.iterdir()] == ["state"], "a draft takes space"
            replace_file(path, NEW)
            assert path.read_bytes() == NEW


@pytest.mark.parametrize("fault", [Fault.FULL, Fault.BROKEN, Fault.SHORT])
@pytest.mark.parametrize("steps", [("write",), ("write", "ftruncate")])
def test_a_failed_append_leaves_the_complete_records(
    fault: Fault, steps: tuple[str, ...], tmp_path: Path
) -> None:
    """This holds if the part of the failed record cannot be removed at once, too."""
    for first in range(1, 13):
        path = tmp_path / f"{first}"
        kept = []
        with disk(FaultyDisk(fault, first, first + 2, steps, seed=first)):
            file = AppendFile.create(path)
            for record in RECORDS:
                with contextlib.suppress(OSError):
                    file.append(record)
                    kept.append(record)
            file.close()
        read = list(read_lines(path))
        assert [text for text in read if text is not None] == [line[9:-1] for line in kept]
        assert read.count(None) <= 1  # a part of the last record
        if fault is Fault.SHORT:
            assert kept == RECORDS


def test_a_killed_append_leaves_the_earlier_records_and_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with disk(FaultyDisk(Fault.KILLED, 3, steps=("write",), seed=1)):
        file = AppendFile.create(path)
        with pytest.raises(Killed):
            for record in RECORDS:
                file.append(record)
    assert list(read_lines(path)) == [RECORDS[0][9:-1], RECORDS[1][9:-1], None]


def test_a_damaged_line_is_told_from_its_neighbours(tmp_path: Path) -> None:
    """A changed bit, and a page of zeros."""
    path = tmp_path / "log"
    data = bytearray(b"".join(RECORDS))
    data[len(RECORDS[0]) + 20] ^= 4
    path.write_bytes(data)
    assert [text is None for text in read_lines(path)] == [False, True] + [False] * 4
    data[len(RECORDS[0]) * 3 : len(RECORDS[0]) * 3 + 40] = bytes(40)
    path.write_bytes(data)
    assert [text is None for text in read_lines(path)].count(True) == 2


def test_a_file_without_line_breaks_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 10_000)
    assert list(read_lines(path, most_bytes=1000)) == [None] * 10
