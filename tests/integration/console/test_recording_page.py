"""A recording in a real browser: a time slider, and two policies side by side."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect

from autoscaler.domain.cluster import Cluster
from autoscaler.serving.billing import NodeSpan
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.timeline import RequestRow, Timeline
from streams.tools.playback.recording_server import document, served
from streams.tools.playback.timeline_run import timeline_run
from tests.hang_limit import HANG_S
from tests.unit.console.console_world import POOLS, TINY
from topics.codec import write_value
from topics.decisions import Decision

ORIGIN_MS = 1_790_000_000_000


def run(name: str, nodes: int, second_node_s: float) -> dict[str, Any]:
    """A run of 20 minutes in which a further node is added."""
    staged = Scenario(Cluster(POOLS, (TINY,)), (), 1200.0)
    timeline = Timeline(ORIGIN_MS)
    timeline.nodes = [
        NodeSpan(f"n{k}", POOLS[0].id, 1.0, second_node_s if k else 0.0, 1200.0)
        for k in range(nodes)
    ]
    for k in range(1200):
        late = 3.0 if nodes == 2 and k > 900 else 0.4
        timeline.requests.append(
            RequestRow(k, "tiny", k, k + late, k + late + 1.0, 9, 11, "served")
        )
    at_ms = ORIGIN_MS + int(1000 * second_node_s)
    timeline.decisions = [
        Decision(1, 1, "tiny", "scale_out", at_ms, True, f"{name} adds a node", 9.0, 8.0, 1.0,
                 change=(("tiny:a1@us/l4/on-demand", 1),))
    ]  # fmt: skip
    return timeline_run(name, timeline, staged, {"tiny": TINY.lengths}).run


@contextmanager
def shown(others: int = 1) -> Iterator[str]:
    """Serves a recording of Shoal's run and `others` in a thread; yields its URL."""
    static = run("static", 3, 0.0)
    runs = [
        run("shoal", 2, 600.0),
        *({**static, "name": f"static{k or ''}"} for k in range(others)),
    ]
    found = document("demo.csv", Cluster(POOLS, (TINY,)), runs, ORIGIN_MS, ORIGIN_MS + 1_200_000)
    url: list[str] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        async with served("127.0.0.1:0", write_value(found)) as at:
            url.append(at)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(HANG_S)
    yield url[0]
    loop.call_soon_threadsafe(end.set)
    thread.join(10.0)
    loop.close()


def test_the_slider_moves_through_time_and_the_other_policy_is_beside(browser: Browser) -> None:
    with shown() as url:
        page = browser.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(url)
        expect(page.locator(".pool-count").first).to_contain_text("2 of")
        slider = page.get_by_role("slider", name="Time")
        slider.focus()
        page.keyboard.press("Home")
        expect(page.locator(".pool-count").first).to_contain_text("1 of")
        expect(page.locator("output")).to_contain_text("14:13:20")
        page.keyboard.press("End")
        expect(page.locator(".pool-count").first).to_contain_text("2 of")
        expect(page.locator(".runs tbody tr")).to_have_count(2)
        assert "static" in page.locator(".legend").nth(1).inner_text()
        page.get_by_role("button", name="show static").click()
        expect(page.locator(".pool-count").first).to_contain_text("3 of")
        expect(page.locator(".item")).to_contain_text("static adds a node")
        page.get_by_role("button", name="Play").click()
        expect(page.locator("output")).not_to_contain_text("14:13:20", timeout=10_000)
        assert page.get_by_role("button", name="Pause all").count() == 0
        assert not wrong
        page.close()


def test_the_slider_of_many_runs_is_one_line_and_a_link_names_the_moment(browser: Browser) -> None:
    with shown(others=9) as url:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        for part, most in ((".player", 50), (".card.runs", 50)):
            box = page.locator(part).bounding_box()
            assert box is not None and box["height"] < most, (part, box)
        page.locator(".card.runs summary").click()
        page.get_by_role("button", name="show static2").click()
        page.get_by_role("slider", name="Time").focus()
        page.keyboard.press("Home")
        expect(page).to_have_url(re.compile(r"run=3&at=1790000000000$"))
        link = page.url
        page.close()
        page = browser.new_page()
        page.goto(link)
        expect(page.locator("output")).to_contain_text("14:13:20")
        expect(page.locator(".card.runs summary")).to_contain_text("static2, ")
        page.close()


BACKTEST = "backtest --trace streams/data/surge.csv.gz --config streams/data/demo.yaml --serve"
"""The demo's requests under Shoal, simulated, then served as a recording."""


@contextmanager
def backtest(*more: str) -> Iterator[str]:
    """Runs `BACKTEST` with these options; yields the URL of the recording."""
    command = [sys.executable, "-m", "streams.cli.entry", *BACKTEST.split(), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            yield next(line.split()[1] for line in lines if line.startswith("console: "))
        finally:
            process.terminate()


def test_the_readmes_picture_is_of_a_run(browser: Browser, pictures: Path) -> None:
    """`make picture` writes it to docs/pictures: minute 16 of the run. A shorter run shows here
    that it can."""
    end = "20m" if "SHOAL_TEST_PICTURES" in os.environ else "5m"
    with backtest("127.0.0.1:0", "--policies", "shoal", "--to", end) as url:
        page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
        page.goto(url)
        slider = page.get_by_role("slider", name="Time")
        low, high = (float(slider.get_attribute(end) or "") for end in ("min", "max"))
        slider.fill(str(round(low + 0.8 * (high - low))))
        page.locator(".item-head").first.click()
        page.mouse.move(0, 0)
        expect(page.locator(".pool-count").first).to_be_visible()
        page.wait_for_timeout(300)
        page.screenshot(path=pictures / "console.png")
        assert (pictures / "console.png").stat().st_size < 400_000
        page.close()
