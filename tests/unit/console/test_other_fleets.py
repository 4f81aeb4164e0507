"""Costs of other fleets: windows of demand, their costs, and the process that computes them."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.performance import catalog
from autoscaler.planning.fleet_comparison import FleetCost
from streams.console.cost_windows import WINDOW_MS, CostWindows
from streams.console.other_fleets_feed import OtherFleetsFeed
from streams.solver.other_fleets import Answer, WindowCosts, costs_of
from tests.unit.console.console_world import TINY, world

START_MS = 1_700_000_100_000 // WINDOW_MS * WINDOW_MS
L40S = Pool("us", "l40s", catalog.gpu("L40S"), 1, 8, Market.ON_DEMAND, 1.9)
L4 = Pool("us", "l4", catalog.gpu("L4"), 1, 8, Market.ON_DEMAND, 0.8)
CLUSTER = Cluster((L4, L40S), (replace(TINY, model="big"), replace(TINY, model="tiny")))


def sampled(
    windows: CostWindows, rates: list[dict[str, float | None]], usd_per_h: float = 3.0
) -> None:
    """Samples every ten seconds. rates: the demand by model in each minute from `START_MS`."""
    for second in range(0, 60 * len(rates) + 1, 10):
        rate = rates[min(second // 60, len(rates) - 1)]
        spent_usd = usd_per_h * second / 3600.0
        windows.sample(START_MS + second * 1000, spent_usd, rate, CLUSTER, {}, {})


def costs(usd_per_h: float, unserved: float = 0.0) -> WindowCosts:
    """Costs in which L4 is the cheaper type, and L40S serves all."""
    by_type = {"L4": FleetCost(1.0, 5.0), "L40S": FleetCost(2 * usd_per_h, unserved)}
    return WindowCosts(by_type, FleetCost(3 * usd_per_h, 0.0), FleetCost(usd_per_h, 0.0))


def test_a_window_has_the_busiest_minute_of_each_model_and_the_cost_of_its_time() -> None:
    windows = CostWindows()
    minutes = [{"big": float(k), "tiny": 9.0 - k} for k in (1, 4, 2, 3, 1)]
    sampled(windows, [*minutes, {"big": 50.0, "tiny": 50.0}])
    question = windows.question()
    assert question is not None
    (window,) = question[0].windows
    assert [(d.model, d.req_per_s) for d in window.demands] == [("big", 4.0), ("tiny", 8.0)]
    assert question[0].peaks == window.demands
    assert question[1][0].usd == pytest.approx(3.0 * WINDOW_MS / 3_600_000)


def test_a_silent_model_and_an_uncovered_window_are_not_compared() -> None:
    windows = CostWindows()
    known: dict[str, float | None] = {"big": 2.0, "tiny": 1.0}
    silent = {**known, "tiny": None}
    sampled(windows, [*[known] * 5, *[silent] * 5, *[known] * 5, known])
    assert [len(q.demands) for q in windows.question()[0].windows] == [2, 2]  # type: ignore[index]
    short = CostWindows()
    for at_ms in (START_MS, START_MS + WINDOW_MS, START_MS + 2 * WINDOW_MS):
        short.sample(at_ms, 3.0, known, CLUSTER, {}, {})
    assert short.question() is None


def test_the_row_compares_fleets_in_the_windows_that_have_costs() -> None:
    """The type that serves all is preferred to a cheaper one that does not."""
    windows = CostWindows()
    sampled(windows, [{"big": 2.0, "tiny": 8.0}] * 16)
    question, asked = windows.question()  # type: ignore[misc]
    assert windows.row() is None and len(asked) == 3
    found = Answer(FleetCost(6.0, 0.0), (costs(2.0), costs(4.0, 1.0), None), False, 0.1)
    windows.answer(asked, question.peaks, found, 99)
    row = windows.row()
    assert row is not None
    assert row["from"] == [START_MS + WINDOW_MS, START_MS + 2 * WINDOW_MS] and row["at"] == 99
    assert row["usd"] == pytest.approx(2 * 3.0 / 12)
    assert [(one["kind"], one["gpu"], one["usd_per_h"]) for one in row["fleets"]] == [
        ("peak", "", [6.0, 6.0]),
        ("type", "L40S", [8.0, 4.0]),
        ("alone", "", [12.0, 6.0]),
        ("together", "", [4.0, 2.0]),
    ]
    assert [one["served"] for one in row["fleets"]] == [1.0, 0.95, 1.0, 1.0]
    assert row["fleets"][1]["usd"] == pytest.approx((8.0 + 4.0) / 12)


def test_windows_that_the_time_limit_left_out_are_asked_for_again() -> None:
    """If it left out all, the newest one is given up, so that the others get their turn."""
    windows = CostWindows()
    sampled(windows, [{"big": 2.0, "tiny": 8.0}] * 16)
    question, (newest, middle, oldest) = windows.question()  # type: ignore[misc]
    windows.answer(
        [newest, middle, oldest], question.peaks, Answer(None, (None,) * 3, False, 20.0), 1
    )
    question, asked = windows.question()  # type: ignore[misc]
    assert asked == [middle, oldest]
    windows.answer(asked, question.peaks, Answer(None, (costs(2.0), None), False, 20.0), 2)
    assert windows.question()[1] == [oldest]  # type: ignore[index]


def test_the_clock_set_back_begins_again() -> None:
    windows = CostWindows()
    sampled(windows, [{"big": 2.0, "tiny": 8.0}] * 6)
    windows.sample(START_MS - 1000, 3.0, {"big": 1.0}, CLUSTER, {}, {})
    assert windows.question() is None


def test_costs_are_those_of_plans_at_the_prices_of_the_window() -> None:
    windows = CostWindows()
    sampled(windows, [{"big": 2.0, "tiny": 1.0}] * 6)
    question, _ = windows.question()  # type: ignore[misc]
    (plain,) = costs_of(question, lambda: 0.0).windows
    dear = replace(question.windows[0], prices={L4.id: 8.0, L40S.id: 19.0})
    (tenfold,) = costs_of(replace(question, windows=(dear,)), lambda: 0.0).windows
    assert plain is not None and tenfold is not None
    assert set(plain.by_type) == {"L4", "L40S"}
    assert plain.alone is not None and plain.together is not None
    assert 0.0 < plain.together.usd_per_h <= plain.alone.usd_per_h * 1.005
    assert plain.together.usd_per_h <= plain.by_type["L4"].usd_per_h * 1.005
    assert tenfold.alone is not None
    assert tenfold.alone.usd_per_h == pytest.approx(10 * plain.alone.usd_per_h)


def test_windows_without_time_have_no_costs() -> None:
    windows = CostWindows()
    sampled(windows, [{"big": 2.0, "tiny": 1.0}] * 11)
    question, _ = windows.question()  # type: ignore[misc]
    found = costs_of(question, lambda: 21.0)
    assert found.peak is None and found.windows == (None, None)


async def test_the_process_answers_while_a_page_is_open_and_ends_after() -> None:
    windows, viewed = CostWindows(), [True]
    sampled(windows, [{"big": 2.0, "tiny": 1.0}] * 6)
    feed = OtherFleetsFeed(windows, lambda: viewed[0], lambda: 7)
    await feed.step()
    row = windows.row()
    process = feed._process
    assert row is not None and row["at"] == 7 and process is not None
    assert [one["kind"] for one in row["fleets"]] == ["peak", "type", "alone", "together"]
    viewed[0] = False
    await feed.step()
    assert feed._process is None and process.returncode is not None


async def test_a_process_that_ends_is_reported_and_asked_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    windows = CostWindows()
    sampled(windows, [{"big": 2.0, "tiny": 1.0}] * 6)
    argv = (sys.executable, "-c", "raise SystemExit(3)")
    wait_s = await OtherFleetsFeed(windows, lambda: True, lambda: 7, argv).step()
    assert wait_s >= 60.0 and windows.question() is not None
    assert "costs of other fleets" in caplog.text


async def test_the_page_receives_the_costs() -> None:
    async with world(models=("big", "tiny")) as at:
        assert at.feed.snapshot()["otherwise"] is None
        at.run(1)
        at.feed.step()
        sampled(at.feed.windows, [{"big": 2.0, "tiny": 8.0}] * 6)
        question, asked = at.feed.windows.question()  # type: ignore[misc]
        found = Answer(FleetCost(6.0, 0.0), (costs(2.0),), False, 0.1)
        at.feed.windows.answer(asked, question.peaks, found, 99)
        assert at.feed.snapshot()["otherwise"] == at.feed.windows.row()
        at.feed.step()
        assert b'"otherwise"' in at.feed.hub._kept[-1][1]
