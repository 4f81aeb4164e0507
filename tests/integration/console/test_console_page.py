"""The console's page in a real browser."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, CDPSession, Page, Route, expect

from autoscaler.tick.rollout_status import CanaryStatus, PropertyStatus, RolloutStatus
from streams.console.model_rows import rollout_row
from streams.tools.up.host_resources import free_port
from tests.hang_limit import HANG_S
from tests.integration.console.staged_console import LARGE, OPERATOR, Console, Size, served
from tests.integration.console.staged_decisions import NOW_MS
from topics.records import Decision

HOSTILE = (
    "<img src=x onerror=globalThis.broken=1>",
    '"><script>globalThis.broken=1</script>',
    "'];globalThis.broken=1;//",
    "__proto__",
    "constructor",
    "a\u202eb\u0000c",
    "${globalThis.broken=1}",
    "x" * 300,
)
PAINTED = "new Promise((done) => requestAnimationFrame(() => done(performance.now())))"
MOST_WORK_S = 1.0
SIZES = {"phone": (360, 780), "desk": (1440, 1000), "wall": (3840, 2160)}


@contextmanager
def opened(browser: Browser, at: Console, **options: Any) -> Iterator[Page]:
    """The page of `at`. Errors on the page and violations of its policy fail the test."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **options})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda m: m.type == "error" and wrong.append(m.text))
    page.goto(at.url)
    page.wait_for_selector(".figures")
    try:
        yield page
        refused = [text for text in wrong if "ERR_" not in text and "status of 4" not in text]
        assert not refused
    finally:
        context.close()


def until(page: Page, condition: str, limit_s: float = HANG_S) -> None:
    """Wait for a condition on the page. Its policy refuses Playwright's own way to wait."""
    assert page.evaluate(
        f"""async (limit) => {{
            const end = performance.now() + limit;
            while (!({condition})) {{
                if (performance.now() > end) return false;
                await new Promise((done) => setTimeout(done, 20));
            }}
            return true;
        }}""",
        1000.0 * limit_s,
    ), condition


def test_names_from_outside_stay_text(browser: Browser) -> None:
    with served(Size(HOSTILE, 24, 0)) as at, opened(browser, at) as page:
        at.decide(Decision(1, 3, "*", "hold", NOW_MS, True, HOSTILE[0] + HOSTILE[1]))
        at.step()
        page.get_by_role("button", name="Notes").click()
        expect(page.locator(".item .reason").first).to_have_text(HOSTILE[0] + HOSTILE[1])
        for name in HOSTILE[:2]:
            page.locator(".models").get_by_role("button", name=name, exact=True).click()
            expect(page.locator("#detail-h")).to_have_text(f"Model {name}")
        assert page.locator("main img, main script, main iframe").count() == 0
        assert page.evaluate("globalThis.broken") is None
        assert page.evaluate("({}).demand") is None  # no prototype was changed
        assert page.locator(".models tbody tr").count() == len(HOSTILE)


def test_a_rollout_shows_its_canary_and_is_taken_back(browser: Browser) -> None:
    known = canary_rollout()
    with served() as at, opened(browser, at) as page:
        page.locator(".models").get_by_role("button", name="code", exact=True).click()
        assert page.locator(".rollout").count() == 0
        at.stage.models["code"] = {**at.stage.models["code"], "rollout": rollout_row(known)}
        at.step()
        panel = page.locator(".rollout")
        expect(panel.locator("p").first).to_contain_text(
            "comparing v1 → v2, wave 1, begun 2 min ago; 1 of 4 run v2"
        )
        expect(panel.locator("tbody tr").nth(1)).to_contain_text("TPOT26 ms20 ms7 of 90 of 9… open")
        page.get_by_role("button", name="Take back").click()
        page.locator("[name=why]").fill("answers differ")
        page.locator("[name=token]").fill(OPERATOR)
        page.keyboard.press("Enter")
        expect(page.locator(".toast")).to_contain_text("code")
        (ordered,) = at.stage.written
        assert (ordered.kind, ordered.scope, ordered.active) == ("rollout-back", "code", True)
        over = replace(known, state="taken back", why="<b>slow</b>", canary=None)
        at.stage.models["code"] = {**at.stage.models["code"], "rollout": rollout_row(over)}
        at.step()
        expect(panel.locator("p").nth(1)).to_have_text("<b>slow</b>")
        expect(page.get_by_role("button", name="Resume rollout")).to_be_visible()
        assert page.get_by_role("button", name="Take back").count() == 0


def canary_rollout() -> RolloutStatus:
    tpot = PropertyStatus("tpot", 26.0, 20.0, 7, 9, 0, 9, "open")
    errors = PropertyStatus("errors", 0.0, 0.0, 0, 9, 9, 9, "fit")
    canary = CanaryStatus(180, 540, 0.01, 1234.5, 0.9, (errors, tpot))
    return RolloutStatus("comparing", "v2", "v1", 1, 4, 1, 119.9 + 7.0, "", canary)


def test_a_proposal_is_approved_and_another_rejected_by_keyboard_alone(browser: Browser) -> None:
    with served() as at, opened(browser, at) as page:
        keys = page.keyboard

        def focus(name: str) -> None:
            for _ in range(120):
                focused = page.evaluate(
                    "document.activeElement.innerText || document.activeElement.name"
                )
                if focused == name:
                    return
                keys.press("Tab")
            raise AssertionError(f"{name} is not reached by Tab")

        focus("Approve #60")
        keys.press("Enter")
        expect(page.locator("[name=why]")).to_be_focused()
        keys.type("quiet hours")
        focus("token")
        keys.type("a-wrong-token-123")
        keys.press("Enter")
        expect(page.locator("dialog .error")).to_contain_text("token is needed")
        focus("token")
        keys.press("Control+a")
        keys.type(OPERATOR)
        keys.press("Enter")
        expect(page.locator(".toast")).to_contain_text("#60 mini")
        (approved,) = at.stage.written
        assert (approved.kind, approved.active, approved.who, approved.why) == (
            "verdict", True, "shared", "quiet hours",
        )  # fmt: skip
        at.do(lambda: again(at))
        at.step()
        focus("Reject #61")
        keys.press("Enter")
        expect(page.locator("[name=why]")).to_be_focused()
        keys.type("too risky")
        keys.press("Enter")  # the token is known in this window
        expect(page.locator(".toast")).to_contain_text("rejected")
        rejected = at.stage.written[-1]
        assert (rejected.active, rejected.proposal, rejected.why) == (False, 61, "too risky")
        keys.press("Escape")
        expect(page.locator("dialog")).not_to_be_visible()


def again(at: Console) -> None:
    at.latest.take(
        Decision(61, 3, "mini", "scale_in", NOW_MS, False, "again",
                 change=(("mini:a1@us-east/l4/spot", -1),), expires_ms=NOW_MS + 3_000_000), 0,
    )  # fmt: skip
    at.stage.proposals["mini"] = {
        "number": 61, "model": "mini", "kind": "scale_in", "change": "-1 1xl4 us-east spot",
        "base": [], "reasons": ["again"], "at": NOW_MS, "expires": NOW_MS + 3_000_000,
    }  # fmt: skip


def test_a_page_survives_a_lost_connection_and_a_take_over(browser: Browser) -> None:
    port = free_port()
    with served(port=port) as at:
        first = at
        with opened(browser, at) as page:
            expect(page.locator(".link-state")).to_contain_text("live")
            page.locator(".models").get_by_role("button", name="code").click()
            at.do(first.feed.hub.close)  # only the stream breaks
            at.step()
            expect(page.locator(".link-state")).to_contain_text("live", timeout=1000 * HANG_S)
            at.do(first.stop)
            expect(page.locator(".alerts")).to_contain_text(
                "does not answer", timeout=1000 * HANG_S
            )
            expect(page.locator(".alerts")).to_contain_text("of 2026-09-21 14:20:0")
            expect(page.locator("main")).to_have_class("stale")
            expect(page.locator(".link-state")).to_contain_text(re.compile("no answer for [3-9] s"))
            with served(port=port) as second:
                second.stage.controller["id"] = second.stage.controller["leader"] = "ctl-2"
                expect(page.locator("h1")).to_contain_text("ctl-2", timeout=1000 * HANG_S)
                expect(page.locator(".alerts")).not_to_contain_text("does not answer")
                expect(page.locator("main")).not_to_have_class("stale")
                expect(page.locator("#detail-h")).to_have_text("Model code")  # still selected
                second.step(30)
                expect(page.locator(".link-state")).to_contain_text("14:20:30")


def test_a_controller_that_stops_leading_keeps_its_last_figures_visibly_stale(
    browser: Browser,
) -> None:
    """Rows that no longer exist are gone after it leads again."""
    with served() as at, opened(browser, at) as page:
        stage = at.stage
        cost = page.locator(".figures dd").first.inner_text()
        figures = stage.models, stage.pools, stage.nodes, stage.proposals
        stage.models, stage.pools, stage.nodes, stage.proposals = {}, {}, {}, {}
        stage.controller |= {"leads": False, "leader": "ctl-1", "gap": None}
        at.step(60)
        alerts, main = page.locator(".alerts"), page.locator("main")
        expect(alerts).to_contain_text("stopped leading; no controller leads")
        expect(alerts).to_contain_text("last known state, of 2026-09-21 14:20:00 UTC")
        expect(main).to_have_class("stale")
        assert page.locator(".models tbody tr").count() == 3
        assert page.locator(".figures dd").first.inner_text() == cost
        stage.controller |= {"leader": "ctl-2"}
        at.do(at.feed.hub.close)
        at.step()
        expect(alerts).to_contain_text("ctl-2 leads and has the figures")
        stage.models, stage.pools, stage.nodes, _ = figures
        del stage.models["mini"]
        stage.size = replace(stage.size, models=("chat", "code"))
        stage.controller |= {"leads": True, "leader": "ctl-1", "gap": 0.01}
        at.step()
        expect(main).not_to_have_class("stale")
        expect(page.locator(".models tbody tr")).to_have_count(2)
        expect(page.locator(".proposals")).to_have_count(0)


def test_a_standby_without_figures_names_the_leader(browser: Browser) -> None:
    with served() as at:
        at.stage.models, at.stage.nodes, at.stage.proposals = {}, {}, {}
        at.stage.controller |= {"leads": False, "leader": "ctl-2"}
        with opened(browser, at) as page:
            expect(page.locator(".alerts")).to_contain_text("stands by; ctl-2 leads")
            expect(page.locator("main")).to_contain_text("has no figures of models")


def test_a_model_that_breaks_its_promise_is_named_first(
    browser: Browser,
) -> None:
    broken = {"level": "broken", "word": "SLO met for 57.5% of 900 requests"}
    with served() as at, opened(browser, at) as page:
        rows = page.locator(".models tbody tr")
        expect(rows.first).not_to_contain_text("mini")
        expect(page.locator(".alert.bad")).to_have_count(0)
        at.stage.models["mini"] |= {**broken, "remedy": "shoal explain mini"}
        at.step()
        expect(rows.first).to_contain_text("57.5%")
        expect(rows.first).to_contain_text("mini")
        expect(page.locator(".alert.bad")).to_contain_text("mini: SLO met for 57.5%")
        expect(page.locator(".figures")).to_contain_text("1 model below promise")


def test_a_model_over_its_spot_limit_says_so(browser: Browser) -> None:
    with served() as at, opened(browser, at) as page:
        row = page.locator(".models").get_by_role("row", name="code")
        expect(row).to_contain_text("75% of its capacity is on spot, 50% allowed")
        row.get_by_role("button", name="code").click()
        facts = page.locator(".detail .facts")
        expect(facts).to_contain_text("75% of planned capacity; ! over the limit of 50%")


def test_a_decision_is_found_by_search_and_linked_to_its_model(browser: Browser) -> None:
    with served(LARGE) as at, opened(browser, at) as page:
        expect(page.locator("#decisions-h .count")).not_to_have_text(re.compile(r"^1?\d{1,2}$"))
        search = page.get_by_role("searchbox", name="Search decisions")
        search.fill("no free nodes #77")
        page.locator(".item-head").first.click()
        model = page.locator(".item-head b").first.inner_text()
        expect(page.locator("#detail-h")).to_have_text(f"Model {model}")
        expect(page.locator(".item.open")).to_contain_text("l40s has no free nodes in us-east")
        search.fill("nothing has these words")
        expect(page.locator(".decisions .empty")).to_have_text("Nothing matches the filter.")


def test_an_open_decision_says_what_was_not_chosen_and_its_cost(browser: Browser) -> None:
    with served() as at, opened(browser, at) as page:
        page.locator(".item-head", has_text="chat").first.click()
        facts = page.locator(".item.open .item-facts")
        expect(facts).to_contain_text("at most 0.4% above the cheapest plan")
        expect(facts).to_contain_text("12.7 req/s in the last minutes")
        expect(facts).to_contain_text("planned for 15.1 req/s; capacity before 17.6 req/s")
        expect(facts).to_contain_text("then 305.20 USD/h, and ")
        row = facts.get_by_role("row", name="2xL40S eu-west")
        expect(row).to_contain_text("+4.30")
        expect(facts.get_by_role("row", name="spot up to 75%")).to_contain_text("−1.20")
        cost = page.locator(".item.open .item-usd").inner_text()
        assert re.fullmatch(r"[+−][0-9.]+ USD/h", cost)


def test_the_costs_of_other_fleets_stand_beside_the_bill(browser: Browser) -> None:
    """With the served share, the difference to this fleet, and the age of the figures."""
    with served() as at, opened(browser, at) as page:
        until(page, "shoalState().history['*']")
        card = page.locator("section", has=page.locator("#cost-h"))
        expect(card.locator(".legend")).to_contain_text("one GPU type (H100)")
        expect(card.get_by_role("row", name="each model alone")).to_contain_text("(+12%)")
        expect(card.get_by_role("row", name="all models together")).to_contain_text("(−6%)")
        expect(card.locator(".otherwise")).to_contain_text("Computed 2 min ago")
        plot = card.locator(".plot").first
        expect(plot).to_have_attribute("aria-label", re.compile(r"each model alone [0-9.]+"))


def test_a_large_fleet_is_shown_within_a_second_of_work(browser: Browser) -> None:
    """CPU time until a page with 100 models, 1,000 nodes and 10,000 decisions shows its figures,
    curves and first decisions. It is the time of the page's main thread and of the server, which
    work one after the other, so a quiet machine shows the page about as fast. The best of at most
    five attempts counts.
    """
    with served(LARGE) as at:
        works, walls = [], []
        for _ in range(5):
            context = browser.new_context(viewport={"width": 1440, "height": 1000})
            page = context.new_page()
            client = context.new_cdp_session(page)
            client.send("Performance.enable", {"timeDomain": "threadTicks"})
            began_s = at.do(time.thread_time)
            page.goto(at.url)
            until(page, "shoalState().history['*'] && shoalState().history['model-000']")
            walls.append(page.evaluate(PAINTED) / 1000.0)
            works.append(at.do(time.thread_time) - began_s + task_s(client))
            until(page, "shoalState().complete")
            state = page.evaluate(
                "(({models, nodes, decisions}) => [models, nodes, decisions].map("
                "(one) => Object.keys(one).length))(shoalState())"
            )
            assert state == [100, 1000, 10_000]
            context.close()
            if works[-1] < MOST_WORK_S:
                break
        print("CPU s until the page is shown:", [round(work, 2) for work in works])
        print("s on the clock:", [round(wall, 2) for wall in walls], "load", os.getloadavg()[0])
        assert min(works) < MOST_WORK_S, works


def task_s(client: CDPSession) -> float:
    """CPU seconds of all tasks of a page's main thread, scripts, layout and painting included."""
    found = client.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))


def test_memory_stays_flat_over_hours_of_events(browser: Browser) -> None:
    small = {"viewport": {"width": 360, "height": 240}}  # painting is not measured
    with served(Size(samples=720)) as at, opened(browser, at, **small) as page:
        client = page.context.new_cdp_session(page)
        number = 0

        def events(count: int) -> float:
            nonlocal number
            for _ in range(count // 20):
                for _ in range(20):
                    number += 1
                    at.decide(Decision(100 + number, 3, "chat", "hold", at.stage.now_ms + number,
                                       True, f"note {number}"))  # fmt: skip
                    at.step(30)
                until(page, f"shoalState().decisions.at(-1).n === {100 + number}")
            return min(heap() for _ in range(3))

        def heap() -> float:
            """Bytes in use after a pause. One reading may include an answer that is on its way."""
            page.wait_for_timeout(300)
            client.send("HeapProfiler.collectGarbage")
            return float(client.send("Runtime.getHeapUsage")["usedSize"])

        events(200)
        before = events(200)
        after = events(800)
        # A note of each event is kept, up to 10,000 of them: about 600 bytes each.
        assert after - before < 800 * 1500, (before, after)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_window_and_axe_finds_nothing_to_mend(
    browser: Browser, tools: Path, pictures: Path, size: str, scheme: Any
) -> None:
    """A picture is taken. Colour schemes differ only in colours."""
    width, height = SIZES[size]
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": height}}
    axe, rules = tools / "axe.js", ["color-contrast"] if scheme == "dark" else []
    with served() as at, opened(browser, at, **options) as page:
        until(page, "shoalState().history.chat && shoalState().history['*']")
        page.locator(".item-head").nth(2).click()
        page.wait_for_timeout(300)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        page.screenshot(path=pictures / f"console-{size}-{scheme}.png", full_page=True)
        if not axe.exists():
            pytest.skip("the page fits, but axe-core cannot be fetched: needs npm")
        page.locator(".pool button").first.click()
        found = violations(page, axe, rules)
        page.get_by_role("button", name="Reject #60").click()
        expect(page.locator("dialog")).to_be_visible()
        found += violations(page, axe, rules, "dialog")  # the rest of the page is inert
    assert not found


def violations(page: Page, axe: Path, rules: Sequence[str] = (), part: str = "html") -> list[str]:
    """Findings by `rules`, or by all rules if it is empty, in the first element of the page that
    the selector `part` matches."""
    if not page.evaluate("'axe' in globalThis"):
        page.evaluate(axe.read_text())
    options = {"runOnly": {"type": "rule", "values": [*rules]}} if rules else {}
    ask = "([part, options]) => axe.run(document.querySelector(part), options)"
    results = page.evaluate(ask, [part, options])
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
        for one in results["violations"]
        for node in one["nodes"][:3]
    ]


def test_the_read_token_is_asked_for_and_kept_for_the_window(browser: Browser) -> None:
    with served(read_token="a-token-for-reads") as at:
        context = browser.new_context()
        page = context.new_page()
        # The answer may arrive before the page listens to its own state.
        page.add_init_script("globalThis.requestAnimationFrame = () => 0")
        page.goto(at.url)
        refused: list[Route] = []

        def keep_refusal(route: Route) -> None:
            if "wrong" in route.request.headers["authorization"]:
                refused.append(route)
            else:
                route.continue_()

        page.get_by_label("Token").wait_for()
        page.route("**/v1/console", keep_refusal)
        page.get_by_label("Token").fill("wrong")
        with page.expect_request("**/v1/console"):
            page.get_by_role("button", name="Open").click()
        page.get_by_label("Token").fill("a-token-for-reads")
        page.get_by_role("button", name="Open").click()
        # The answer to the wrong token arrives after the right one was given.
        refused[0].fulfill(status=401)
        expect(page.locator(".figures")).to_be_visible()
        page.reload()
        expect(page.locator(".figures")).to_be_visible()
        context.close()
