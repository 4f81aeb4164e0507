"""Doctor, status, metrics and the page say the same of a fleet, and what is true, in each state."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from autoscaler.domain.condition_level import Level
from streams.cli import controller_client, doctor, status
from tests.integration.console.staged_states import STATES, State
from tests.integration.console.states_server import StatesServer, served_states
from tests.integration.console.test_console_page import until

TONES = {
    Level.BROKEN: {"bad"},
    Level.AT_RISK: {"warn"},
    Level.ATTENTION: {"hold"},
    Level.OK: {"ok", "busy"},
}
LEVEL_LINE = re.compile(r'^shoal_model_level\{model="chat"\} (\S+)$', re.MULTILINE)


def test_every_view_of_a_fleet_agrees_in_every_state(
    browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong: dict[str, list[str]] = {}
    with served_states() as at:
        page = browser.new_page()
        page.goto(at.url)
        for name, state in STATES.items():
            at.show(state, state.made())
            until(page, f"shoalState().event === '{at.event()}'")
            found = [*commands(page, at, state, capsys), *of_page(page, at, state)]
            if found:
                wrong[name] = found
        page.close()
    assert not wrong


def commands(
    page: Page, at: StatesServer, state: State, capsys: pytest.CaptureFixture[str]
) -> Iterator[str]:
    """Disagreements of the commands and the metrics with the truth."""
    capsys.readouterr()
    code = doctor.run(Namespace(config=None, url=at.url, json=True))
    findings = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    if code != int(state.is_fault):
        yield f"doctor ends with {code}: {[one for one in findings.values() if not one['ok']]}"
    code = status.run(Namespace(watch=False, url=at.url, json=True))
    told = json.loads(capsys.readouterr().out)
    if code != int(state.is_failure):
        yield f"status ends with {code}"
    if not state.is_led:
        return
    row = chat(told)
    if row["level"] != state.level:
        yield f"status: {row['level']}, {row['word']}"
    if findings["chat"]["state"] != row["word"]:
        yield f"doctor: {findings['chat']}"
    (level,) = LEVEL_LINE.findall(page.request.get(f"{at.url}/metrics").text())
    if float(level) != state.level.urgency:
        yield f"metrics: {level}"


def of_page(page: Page, at: StatesServer, state: State) -> Iterator[str]:
    """Disagreements of the page with the truth."""
    told = controller_client.status(at.url)
    main = page.locator("main")
    if state.shown:
        expect(main).to_contain_text(state.shown)
    if not state.is_led:
        expect(main).to_have_class("stale")
        return
    expect(main).not_to_have_class("stale")
    tag = page.locator(".models tbody tr", has=page.get_by_role("button", name="chat")).locator(
        ".tag"
    )
    tones = set((tag.get_attribute("class") or "").split()) - {"tag"}
    if not tones <= TONES[state.level]:
        yield f"page: tone {tones}"
    if chat(told)["word"] not in tag.inner_text():
        yield f"page: {tag.inner_text()}"
    first = page.locator(".models tbody tr").first.inner_text()
    if state.level is not Level.OK and not first.startswith("chat"):
        yield f"page: {first} is on top"
    is_named = "chat:" in page.locator(".alerts").inner_text()
    if (state.level is Level.BROKEN) > is_named:
        yield "page: no alert names the model"
    is_broken = "1 model below promise" in page.locator(".figures").inner_text()
    if is_broken != (state.level is Level.BROKEN):
        yield f"page: {page.locator('.figures').inner_text()}"
    is_alarm = page.locator(".alert.bad").count() > 0
    if is_alarm != state.is_failure:
        yield f"page: alerts {page.locator('.alerts').inner_text()}"


def chat(told: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in told["models"] if one["model"] == "chat")
