"""Events of the time line other than decisions."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

from autoscaler.tick.status import ModelStatus
from streams.console.decision_book import DecisionBook
from streams.console.fleet_events import FleetEvents, alert_row, note_row
from topics.alerts import Alert
from topics.controls import Control
from topics.fleet import NO_DEADLINE_MS, Status

PAUSE = Control("chat", "pause", True, "ann", "drill", 1000, version=1, command_id="a")
CHAT = ModelStatus(
    "chat", "act", "", 1.0, 1.0, "", 1.0, 1.0, 1, 1, (), None, 0.0, None, 0.0, None, None, 1.0, 0,
    True,
)  # fmt: skip


def test_each_command_makes_one_row_in_its_order() -> None:
    events = FleetEvents()
    controls = {PAUSE.key: PAUSE}
    assert texts_of(events.commands(controls)) == ["ann, paused: drill"]
    assert not [*events.commands(controls)]
    ended = replace(PAUSE, active=False, why="", at_ms=2000, version=2, command_id="b")
    answer = Control("code", "verdict", False, "bo", "risky", 3000, proposal=7, leader_token=2)
    controls = {ended.key: ended, answer.key: answer}
    assert texts_of(events.commands(controls)) == ["ann, resumed", "bo, rejected #7: risky"]
    assert not [*events.commands({answer.key: answer})]  # one was removed
    again = replace(PAUSE, version=3, command_id="c", at_ms=4000)
    assert [row["model"] for row in events.commands({answer.key: answer, again.key: again})] == [
        "chat"
    ]


def test_a_notice_without_a_deadline_is_maintenance_in_the_time_line_and_on_the_page() -> None:
    events = FleetEvents()
    node = Status("n0", "us/l4/owned", "ex", 1, 5)
    assert not [*events.reclaims({"n0": node}, 1000)]
    waits = replace(node, reclaim_ms=NO_DEADLINE_MS)
    assert "emptied for maintenance" in texts_of(events.reclaims({"n0": waits}, 2000))[0]
    assert not [*events.reclaims({"n0": node}, 3000)]
    soon = replace(node, reclaim_ms=9000)
    assert "reclaimed by the cloud" in texts_of(events.reclaims({"n0": soon}, 4000))[0]
    page = (files("streams.console") / "page" / "fleet.js").read_text()
    assert f"const NO_DEADLINE = {NO_DEADLINE_MS};" in page


def texts_of(rows: Any) -> list[str]:
    return [row["reason"] for row in rows]


def test_a_verdict_makes_a_row_when_it_changes_to_or_from_an_urgent_one() -> None:
    events, kinds = FleetEvents(), []
    for second, level in enumerate(
        ("ok", "attention", "ok", "at_risk", "broken", "broken", "attention", "ok")
    ):
        rows = events.verdicts([replace(CHAT, level=level, word=level)], 1000 * second)
        kinds += [(row["kind"], row["at"]) for row in rows]
    assert kinds == [("at_risk", 3000), ("broken", 4000), ("recovered", 6000)]


def test_nodes_that_are_lost_together_make_one_row_for_each_pool() -> None:
    events, pools = FleetEvents(), {"a": "us/l4/spot", "b": "us/l4/spot", "c": "eu/l4/owned"}
    assert not [*events.losses(frozenset({"old"}), pools, 1)]  # lost before this controller led
    rows = [*events.losses(frozenset({"a", "b", "c", "d"}), pools, 2)]
    assert texts_of(rows) == [
        "d is lost",
        "c of eu/l4 (owned) is lost",
        "2 nodes of us/l4 (spot) are lost",
    ]
    assert len({(row["token"], row["n"]) for row in rows}) == 3
    assert not [*events.losses(frozenset({"a", "d"}), pools, 3)]


def test_alerts_and_notes_name_their_models() -> None:
    alert = Alert("f", "KVCacheFull", "firing", 1, ("chat", "code"))
    assert alert_row(alert, 5)["reason"] == "alert KVCacheFull of chat, code: firing"
    assert alert_row(replace(alert, models=("chat",)), 5)["model"] == "chat"
    assert alert_row(alert, 5)["n"] != alert_row(replace(alert, state="resolved"), 5)["n"]
    note = note_row(5, "*", "ann", "gateway v7")
    assert (note["reason"], note["model"]) == ("ann: gateway v7", "*")


def test_the_book_keeps_events_once_in_the_order_of_time() -> None:
    book = DecisionBook(most=3)
    rows = [note_row(at_ms, "*", "ann", "x") for at_ms in (30, 10, 20, 40)]
    assert book.put(rows[:1]) == rows[:1] and not book.put(rows[:1])
    version = book.version
    assert book.put(rows[1:]) == rows[1:] and book.version > version
    assert [row["at"] for row in book.rows()] == [20, 30, 40]


def test_a_notice_of_the_cloud_is_an_event_once() -> None:
    def status(node: str, reclaim_ms: int) -> Status:
        return Status(node, "us/l4/spot", "ex", 1, 5, reclaim_ms=reclaim_ms)

    events, quiet = FleetEvents(), {"a": status("a", 0), "b": status("b", 0)}
    assert not [*events.reclaims(quiet, 1)]
    noticed = {"a": status("a", 900), "b": status("b", 900)}
    rows = [row for now_ms in (2, 3) for row in events.reclaims(noticed, now_ms)]
    assert texts_of(rows) == ["2 nodes of us/l4 (spot) are reclaimed by the cloud"]
