"""The console's page in an incident: links, ranges of time, files, and a fleet with faults."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect

from tests.integration.console.staged_console import LARGE, TOKENS, Size, served
from tests.integration.console.test_console_page import opened, until

SCALES = "[...document.querySelectorAll('.plot')].map(({plot}) => plot.scales.x)"


def zoom(page: Page, plot: Locator) -> tuple[float, float]:
    """Drag over the middle of a chart. Returns the span of its axis in s."""
    until(page, "document.querySelector('.plot').plot.data[0].length")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    y = box["y"] + 40
    page.mouse.move(box["x"] + 0.4 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * box["width"], y, steps=3)
    page.mouse.up()
    expect(page.locator(".range.fixed")).to_be_visible()
    return spans(page)[0]


def spans(page: Page) -> list[tuple[float, float]]:
    return [(one["min"], one["max"]) for one in page.evaluate(SCALES)]


def test_a_zoom_survives_100_samples_and_leads_back_to_live(browser: Browser) -> None:
    with served() as at, opened(browser, at) as page:
        before = zoom(page, page.locator(".plot").nth(1))
        for _ in range(100):
            at.step(10)
        at.step()
        until(page, f"shoalState().now_ms === {at.stage.now_ms}")
        assert spans(page) == [before] * 5
        page.get_by_role("button", name="Earlier").click()
        until(page, f"{SCALES}[0].min < {before[0] - 60}")
        page.get_by_role("button", name="Back to live").click()
        until(page, f"{SCALES}[0].max * 1000 > {at.stage.now_ms - 20_000}")
        page.get_by_role("button", name="15 min").click()
        until(page, f"{SCALES}.every(({{min, max}}) => max - min === 900)")
        last = spans(page)[0][1]
        at.step(10)
        until(page, f"{SCALES}[0].max > {last}")


def test_a_link_shows_the_same_model_range_and_decision_to_another_person(
    browser: Browser,
) -> None:
    with served(replace(LARGE, decisions=400)) as at:
        with opened(browser, at) as page:
            until(page, "shoalState().complete")
            page.get_by_role("searchbox", name="Find a model").fill("077")
            page.locator(".models").get_by_role("button", name="model-077").click()
            zoom(page, page.locator(".plot").first)
            page.get_by_role("button", name="Back to live").click()
            page.get_by_role("searchbox", name="Search decisions").fill("model-005")
            expect(page.locator("#decisions-h .count")).to_have_text(re.compile(r"^[12]\d$"))
            page.locator(".item-head").last.click()  # not one of the recent decisions
            expect(page).to_have_url(re.compile("model=model-005&decision=3/1$"))
            page.go_back()
            expect(page.locator("#detail-h")).to_have_text("Model model-077")
            expect(page.locator(".item.open")).to_have_count(0)
            page.go_back()
            expect(page.locator(".range.fixed")).to_be_visible()
            page.go_forward()
            expect(page.locator(".range.fixed")).to_have_count(0)
            page.go_forward()
            expect(page.locator("#detail-h")).to_have_text("Model model-005")
            zoom(page, page.locator(".plot").first)
            reason = page.locator(".item.open .reason").first.inner_text()
            span, link = spans(page)[0], page.url
            page.reload()
            shows(page, span, reason)
            at.step()
            assert page.url == link
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        shows(page, span, reason)
        page.goto(f"{at.url}/#model=constructor&range=__proto__&decision=x")
        page.reload()
        expect(page.locator("#detail-h")).to_have_text("Model model-000")
        context.close()


def shows(page: Page, span: tuple[float, float], reason: str) -> None:
    """Wait for the model, the range and the decision of a link."""
    until(page, "globalThis.shoalState?.().complete")
    expect(page.locator("#detail-h")).to_have_text("Model model-005")
    expect(page.locator(".item.open .reason").first).to_have_text(reason)
    until(page, "document.querySelector('.plot')?.plot.data[0].length")
    assert spans(page)[0] == span


def test_the_models_that_need_attention_are_on_top_counted_and_alone(browser: Browser) -> None:
    with served(LARGE) as at, opened(browser, at) as page:
        rows = page.locator(".models tbody tr")
        bad = {"level": "broken", "word": "SLO met for 57.5% of 900 requests", "remedy": "see"}
        for name in ("model-050", "model-097"):
            at.stage.models[name] |= bad
        at.step()
        expect(rows.first).to_contain_text("model-050")
        expect(rows.nth(1)).to_contain_text("model-097")
        expect(rows.nth(2)).to_contain_text("model-001")  # at risk
        page.get_by_role("button", name="Broken 2").click()
        expect(rows).to_have_count(2)
        at.stage.models["model-050"] |= {"level": "ok", "word": "steady"}
        at.step()
        expect(page.get_by_role("button", name="Broken 1")).to_be_visible()
        expect(rows).to_have_count(1)


def test_slo_cost_and_state_stay_on_a_phone(browser: Browser) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    long = Size(("chat", "a-model-whose-name-has-many-words-in-it", "mini"))
    with served(long) as at, opened(browser, at, **phone) as page:
        at.stage.models["chat"] |= {"level": "broken", "remedy": "see"}
        at.stage.models["chat"]["word"] = "no instance is ready, and 14.2 req/s arrive"
        at.step()
        expect(page.locator(".models tbody")).to_contain_text("no instance is ready")
        table = page.locator(".models")
        assert table.evaluate("(one) => one.parentElement.scrollWidth") <= 390
        for cell in table.locator("tbody tr").first.locator("th, td:visible").all():
            box = cell.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
        heads = [one for one in table.locator("thead th:visible").all_inner_texts() if one]
        assert [head.split("\n")[0] for head in heads] == ["Model", "SLO met", "Cost", "State"]


def test_the_chart_of_the_slo_shows_an_outage_of_minutes(browser: Browser) -> None:
    with served(Size(samples=60)) as at, opened(browser, at) as page:
        until(page, "shoalState().history.chat")
        for met in (0.575, None, 0.0, None):
            at.stage.fixed = {"chat": {"attained_now": met, "attained": 0.93}}
            at.step(10)
        until(page, "shoalState().history.chat.attained_now.at(-2) === 0")
        chart = "document.querySelectorAll('.plot')[1].plot"
        until(page, f"{chart}.scales.y.min === 0")  # Drawn in the next frame
        marks = f"((s) => s.points.filter({chart}, 1, true, []))({chart}.series[1])"
        ends = page.evaluate(f"{marks}.map((i) => {chart}.data[1][i])")
        assert ends == [0]  # no line leads to a single value


def test_the_shown_data_is_saved_as_a_table_and_as_a_picture(
    browser: Browser, tmp_path: Path
) -> None:
    with served() as at, opened(browser, at) as page:
        span = zoom(page, page.locator(".plot").first)
        card = page.locator(".detail")
        with page.expect_download() as download:
            card.get_by_role("button", name="CSV").click()
        head, *rows = download.value.path().read_text().splitlines()
        assert download.value.suggested_filename == "shoal-chat.csv"
        assert head.startswith("time_utc,demand_req_per_s,") and ",slo_met," in head
        assert len(rows) == int(span[1] // 10) - int(-(-span[0] // 10)) + 1
        assert re.match(r"2026-09-21T\d\d:\d\d:\d0.000Z,\d", rows[0])
        with page.expect_download() as download:
            card.get_by_role("button", name="Picture").click()
        picture = download.value.path().read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) > 20_000
        with page.expect_download() as download:
            page.locator("#decisions").get_by_role("button", name="CSV").click()
        listed = download.value.path().read_text().splitlines()
        assert len(listed) - 1 == page.locator(".item").count() > 3


def test_costs_of_a_month_a_request_and_a_token_follow_the_shown_span(browser: Browser) -> None:
    with served() as at, opened(browser, at) as page:
        until(page, "shoalState().history['*']")
        sums = page.locator("section", has=page.locator("#cost-h")).locator(".sums")
        bill = at.stage.usd()
        expect(sums).to_contain_text(f"{bill:.2f}")
        expect(sums).to_contain_text(f"{round(bill * 730):,}")
        cost = figures(sums)
        assert abs(1000.0 * cost["1,000 requests"] / TOKENS / cost["A million tokens"] - 1.0) < 0.02
        assert cost["SLO met"] == 98.5
        all_of_it = next(value for name, value in cost.items() if name.startswith("This fleet"))
        zoom(page, page.locator(".plot").first)
        part = next(v for name, v in figures(sums).items() if name.startswith("This fleet"))
        assert 0.1 * all_of_it < part < 0.5 * all_of_it


def figures(sums: Locator) -> dict[str, float]:
    names = sums.locator("dt").all_inner_texts()
    values = [re.sub("[,%]", "", one.split()[0]) for one in sums.locator("dd").all_inner_texts()]
    return dict(zip(names, map(float, values), strict=True))
