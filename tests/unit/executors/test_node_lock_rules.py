"""Which statuses give an executor the lock on its node, and for how long they count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executors.node.node_lock import NodeLock
from topics.fleet import Status

NOW_MS, APPEND_MS = 1_700_000_000_000, 1_900_000_000_000


def ours(**changes: object) -> NodeLock:
    return replace(NodeLock("n0", "b1", "here"), **changes)  # type: ignore[arg-type]


def status(boot: str, place: str = "there", at_ms: int = NOW_MS) -> Status:
    return Status("n0", "r/p/owned", f"ex-{boot}", 0, at_ms, boot=boot, place=place)


def read(lock: NodeLock, one: Status, after_ms: int = 0, live: bool = True) -> None:
    """`lock` reads `one`, which was appended and read `after_ms` after the start."""
    lock.on_status(one, APPEND_MS + after_ms, NOW_MS + after_ms, live)


@pytest.mark.parametrize(("speed", "limit_ms"), [(0.5, 30_000), (3.0, 30_000), (4.0, 40_000)])
def test_silence_lasts_30_s_and_at_least_10_real_seconds(speed: float, limit_ms: int) -> None:
    assert ours(speed=speed).silence_limit_ms == limit_ms


def test_a_node_without_another_executor_is_claimed_by_the_first_status() -> None:
    lock = ours()
    assert not lock.claimed and not lock.contested(NOW_MS)
    read(lock, status("b1", "here"))
    assert lock.claimed and lock.fault(NOW_MS) == ""
    lock.drop_claim()
    assert not lock.claimed
    read(lock, status("b1", "here"), 1)
    assert lock.claimed


def test_the_other_executor_holds_the_node_until_it_is_silent() -> None:
    lock = ours()
    read(lock, status("b2"))
    assert lock.contested(NOW_MS + 29_999) and not lock.contested(NOW_MS + 30_000)
    assert lock.fault(NOW_MS + 29_999) == (
        "executor ex-b2 (there) holds n0; this executor starts nothing"
    )
    assert lock.fault(NOW_MS + 30_000) == ""
    read(lock, status("b1", "here"), 29_999)
    assert not lock.claimed, "the other one was appended 30 s ago at most"
    assert lock.contested(NOW_MS + 59_998) and not lock.contested(NOW_MS + 59_999)
    read(lock, status("b1", "here"), 60_000)
    assert lock.claimed


def test_silence_is_measured_in_domain_time_between_appends() -> None:
    """At a speed of 10, the limit of 100 s is 10 s of the broker's clock."""
    for gap_ms, claimed in ((9_999, False), (10_000, True)):
        lock = ours(speed=10.0)
        lock.on_status(status("b2"), APPEND_MS, NOW_MS, True)
        lock.on_status(status("b1", "here"), APPEND_MS + gap_ms, NOW_MS + 100_000, True)
        assert lock.claimed is claimed


def test_the_first_of_two_starting_executors_keeps_its_claim() -> None:
    lock = ours()
    read(lock, status("b1", "here"))
    read(lock, status("b2"), 10)
    assert lock.claimed and not lock.contested(NOW_MS + 10)
    assert lock.fault(NOW_MS + 10) == "executor ex-b2 (there) also claims n0"
    read(lock, status("b1", "here"), 20)
    assert lock.claimed and lock.fault(NOW_MS + 30_010) == ""


@pytest.mark.parametrize(
    "earlier", [status("b0", "here"), status("", "there")], ids=["same folder", "no boot"]
)
def test_a_status_of_an_earlier_process_of_this_executor_is_ignored(earlier: Status) -> None:
    lock = ours()
    read(lock, earlier)
    assert lock.other is None and not lock.contested(NOW_MS)
    read(lock, status("b1", "here"), 1)
    assert lock.claimed


@pytest.mark.parametrize(
    ("age_ms", "live", "counts"),
    [(300_000, False, True), (300_001, False, False), (-300_001, False, False),
     (300_001, True, True)],
)  # fmt: skip
def test_an_old_status_read_at_the_start_does_not_count(
    age_ms: int, live: bool, counts: bool
) -> None:
    """Ten times the limit allows for clocks that differ."""
    lock = ours()
    read(lock, status("b2", at_ms=NOW_MS - age_ms), live=live)
    assert lock.contested(NOW_MS) is counts


def test_an_executor_without_a_place_is_named_as_unknown() -> None:
    lock = ours()
    read(lock, status("b2", ""))
    assert "(unknown place)" in lock.fault(NOW_MS)
