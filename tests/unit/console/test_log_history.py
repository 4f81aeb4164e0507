"""The console's history after a restart: decided again from the decision log."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streams.console.history import FLEET
from streams.console.log_history import fill, read_log
from tests.unit.console.console_world import world as console_world
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, world
from tests.unit.decision_log.recorded_worlds import record


def small_world() -> World:
    return world(lambda _model, _t: 6.0, service("chat"), pools=(pool("one", per_node=1),))


def test_the_past_has_the_figures_and_the_decisions_of_the_ticks(tmp_path: Path) -> None:
    past = small_world()
    record(past, tmp_path, 300)
    history, decisions = read_log(tmp_path, "ctl-1", past.now_ms + 1)
    assert decisions and [d.at_ms for d in decisions] == sorted(d.at_ms for d in decisions)
    times = [at_ms for at_ms, _ in history[FLEET]]
    assert times == sorted(set(times)) and len(times) >= 28
    last = history[FLEET][-1][1]
    assert last["usd"] and last["nodes"]
    assert read_log(tmp_path, "another-controller", past.now_ms + 1) == ({}, [])


async def test_a_console_is_filled_and_a_missing_log_changes_nothing(tmp_path: Path) -> None:
    past = small_world()
    await asyncio.to_thread(record, past, tmp_path / "log", 60)
    async with console_world() as at:
        await fill(at.feed, tmp_path / "none", "ctl-1", past.now_ms + 1)
        assert at.feed.history.columns(FLEET) is None and at.feed.book.rows() == []
        await fill(at.feed, tmp_path / "log", "ctl-1", past.now_ms + 1)
        columns = at.feed.history.columns(FLEET)
        assert columns is not None and columns["usd"][-1] is not None
        assert at.feed.book.rows()
