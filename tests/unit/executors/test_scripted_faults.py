"""Scripted faults reach the nodes that the file names, and a bad file changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from executors.node.scripted_faults import FaultsFile, parse_faults
from topics.checks import InvalidValue


class FakeNode:
    """Records the calls of `FaultsFile`."""

    def __init__(self) -> None:
        self.left_s: float | None = None
        self.lost = False

    def on_reclaim_notice(self, left_s: float | None) -> None:
        self.left_s = left_s

    def set_lost(self, lost: bool) -> None:
        self.lost = lost


def write(path: Path, value: object, at_ns: int) -> None:
    path.write_bytes(orjson.dumps(value))
    os.utime(path, ns=(at_ns, at_ns))


def test_a_notice_is_given_in_real_seconds_and_ends_with_its_entry(tmp_path: Path) -> None:
    path, node = tmp_path / "faults.json", FakeNode()
    file = FaultsFile(path)
    assert not file.refresh(), "a missing file changes nothing"
    write(path, {"reclaim_ms": {"n0": 220_000}}, 1)
    assert file.refresh()
    assert not file.refresh(), "an unchanged file is read once"
    file.apply("n0", node, 100_000, 10.0)
    assert node.left_s == pytest.approx(12.0)
    write(path, {"lost": ["n0"]}, 2)
    assert file.refresh()
    file.apply("n0", node, 220_000, 10.0)
    assert node.left_s is None
    assert node.lost


def test_launches_fail_on_a_node_or_on_its_whole_pool() -> None:
    faults = parse_faults({"failing": ["eu/l4/spot", "n7"]})
    assert faults.launch_fault("n1", "eu/l4/spot") == "launches on eu/l4/spot fail"
    assert faults.launch_fault("n7", "eu/l4/on-demand") == "launches on n7 fail"
    assert faults.launch_fault("n8", "eu/l4/on-demand") == ""


def test_a_bad_file_keeps_the_last_faults(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    file = FaultsFile(path)
    write(path, {"lost": ["n0"]}, 1)
    file.refresh()
    write(path, {"lost": "n1"}, 2)
    assert not file.refresh()
    assert file.faults.lost == {"n0"}


@pytest.mark.parametrize(
    "raw", [[], {"gone": []}, {"lost": "n0"}, {"reclaim_ms": {"n0": -1}}, {"failing": [7]}]
)
def test_bad_faults_are_refused(raw: object) -> None:
    with pytest.raises(InvalidValue):
        parse_faults(raw)
