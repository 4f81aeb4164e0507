"""The report of a backtest in a real browser: on a screen, on a phone and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from autoscaler.domain.cluster import Cluster
from autoscaler.simulation.cost_causes import Causes, CostCause, MissCause
from autoscaler.simulation.hindsight.hindsight_cost import Hindsight
from autoscaler.simulation.policy_score import ModelScore, Point, Score
from autoscaler.simulation.scenario import Scenario
from streams.tools.backtest.backtest_demand import Workload
from streams.tools.backtest.backtest_report import Backtest, Row
from streams.tools.backtest.html_report import page
from tests.integration.console.test_console_page import violations
from tests.unit.console.console_world import POOLS, TINY

WHITE = "rgb(255, 255, 255)"


def row(policy: str, knob: float, usd: float, attained: int) -> Row:
    """The result of one run of 1,000 requests."""
    course = tuple(Point(60.0 * k, 4.0 + k % 3, {"L4": 2.0}, 2.0, 99, 100) for k in range(10))
    models = {"tiny": ModelScore(1000, 1000, attained)}
    causes = Causes(
        dict.fromkeys(CostCause, usd / len(CostCause)),
        dict.fromkeys(MissCause, (1000 - attained) / len(MissCause)),
    )
    score = Score(usd, 8.0, 900.0, 12.0, 0.5, 4, 0, models, course, causes)
    return Row(policy, knob, (score,))


@pytest.fixture
def report(tmp_path: Path) -> str:
    """The address of a report in which one setting of another policy is cheaper."""
    curves = {
        "shoal": (row("shoal", 0.9, 3.8, 960), row("shoal", 0.99, 4.4, 995)),
        "knative": (row("knative", 0.5, 3.9, 985), row("knative", 0.9, 3.2, 900)),
    }
    workload = Workload(Scenario(Cluster(POOLS, (TINY,)), (), 600.0), ("<b>a note</b>",))
    rows = row("shoal", 0.0, 4.0, 985), row("knative", 0.7, 4.5, 980)
    found = Backtest(
        ("<trace>.csv",), (), (workload,), (1,), rows, curves,
        Hindsight(2.0, 3.0, 2.9, 1.0, 0.95), {},
    )  # fmt: skip
    file = tmp_path / "report.html"
    file.write_text(page(found))
    return file.as_uri()


def test_each_setting_is_compared_with_shoal_as_it_ran(browser: Browser, report: str) -> None:
    shown = browser.new_page()
    shown.goto(report)
    what_if = shown.locator("table").nth(3)
    expect(what_if.locator("tbody tr")).to_have_count(4)
    (marked,) = what_if.locator("tr.ours").all()
    assert marked.locator("td").all_inner_texts()[2:] == ["0.5", "3.90", "-2.5%", "98.50%", "+0.00"]
    picture = shown.get_by_role("img", name="requests that met their SLO")
    assert picture.locator("circle").count() == 4 + 2  # settings, and the runs of the table
    assert shown.locator("b", has_text="a note").count() == 0
    shown.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_readable_on_each_screen(
    browser: Browser, tools: Path, pictures: Path, report: str, scheme: Any
) -> None:
    for width in (360, 1000):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        shown = context.new_page()
        shown.goto(report)
        assert shown.evaluate("document.scrollingElement.scrollWidth") <= width
        background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == WHITE) == (scheme == "light")
        if (tools / "axe.js").exists():
            assert not violations(shown, tools / "axe.js")
        shown.screenshot(path=pictures / f"report-{width}-{scheme}.png", full_page=True)
        context.close()


def test_paper_is_white_and_keeps_rows_and_pictures_whole(browser: Browser, report: str) -> None:
    context = browser.new_context(color_scheme="dark")
    shown = context.new_page()
    shown.emulate_media(media="print", color_scheme="dark")
    shown.goto(report)
    style = "(one) => getComputedStyle(document.querySelector(one))"
    assert shown.evaluate(f"({style})('body').backgroundColor") == WHITE
    for one in ("svg", "tr"):
        assert shown.evaluate(f"({style})('{one}').breakInside") == "avoid"
    context.close()
