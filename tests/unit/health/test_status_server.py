"""Health, status and listen addresses of the controller."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import aiohttp
import pytest

from streams.cli import explain, status
from streams.files.user_errors import UserError
from streams.health.listen_address import parse_listen
from streams.health.status_server import HealthServer
from tests.unit.health.served_controller import (
    NOW_MS,
    SILENT,
    Made,
    get,
)
from topics.decisions import Decision


async def test_a_leader_without_decisions_is_not_healthy(made: Made) -> None:
    made.run(1, 1)
    assert (await get(made, "/healthz"))[0] == 200
    made.now_s = 11.0
    code, words = await get(made, "/healthz")
    assert code == 503 and words == "no decision for 11 s\n"
    assert (await get(made, "/readyz"))[0] == 503


async def test_a_leader_without_decisions_is_alive(made: Made) -> None:
    """During an outage of Kafka nothing is decided, and a restart would not mend it."""
    made.run(1, 1)
    made.now_s = 1000.0
    assert (await get(made, "/healthz"))[0] == 503
    assert await get(made, "/livez") == (200, "ok\n")


async def test_status_and_explain_show_the_plan_in_mode_recommend(made: Made) -> None:
    """No assignment is published in this mode. The text fits a terminal."""
    made.run(1, 5)
    facts = json.loads((await get(made, "/v1/status"))[1])
    assert facts["writes"] == 0 and facts["models"][0]["wanted"] >= 1
    shown = " ".join(" ".join(map(str, status.lines(facts))).split())
    assert "ctl-1 leads, last decision 0 s ago; mode recommend" in shown
    assert "; 0 records written" in shown
    found = json.loads((await get(made, "/v1/explain/tiny"))[1])
    reasons = explain.planned_again(found["request"], found["cluster"], "tiny")
    assert reasons is not None
    text = list(map(str, explain.lines(found, reasons)))
    assert max(map(len, text)) <= 80
    assert "recommended, not applied" in " ".join(text[:2])
    assert any(line.split()[:2] == ["why", "declared"] for line in text)
    assert found["sizing"]["code"] == "declared" and any("sizing" in line for line in text)
    assert (await get(made, "/v1/explain/none"))[0] == 404


async def test_status_names_the_last_failed_start_while_a_model_lacks_capacity(made: Made) -> None:
    """Without it, a workload whose pods do not fit the plan shows only "starting"."""
    made.run(1, 1)
    facts = made.facts
    first = Decision(1, 3, "tiny", "hold", NOW_MS, True, "no", codes=("backing_off",))
    facts.decisions.append(first)
    facts.decisions.append(replace(first, number=2, at_ms=NOW_MS + 5000, reason="1 GPU allowed"))
    facts.decisions.append(replace(first, number=3, reason="something else", codes=("declared",)))
    made.run(2, 5)
    found = json.loads((await get(made, "/v1/status"))[1])
    said = {"model": "tiny", "at_ms": NOW_MS + 5000, "reason": "1 GPU allowed"}
    assert found["models"][0]["ready"] < found["models"][0]["wanted"]
    assert found["failed_starts"] == [said]
    shown = " ".join(" ".join(map(str, status.lines(found))).split())
    assert "Failed starts tiny at " in shown and ": 1 GPU allowed" in shown
    standing = facts.standing()
    assert standing is not None
    served = replace(standing.models[0], ready=standing.models[0].wanted, conditions=())
    assert not facts.failed_starts(replace(standing, models=(served,)))


async def test_status_has_the_last_decision_that_changes_a_model(made: Made) -> None:
    made.run(1, 1)
    first = Decision(1, 3, "tiny", "scale_out", NOW_MS, True, "more", codes=("a", "b"))
    for change in (
        {},
        {"number": 2, "cause": "c"},
        {"number": 3, "kind": "hold"},
        {"number": 4, "model": "other"},
        {"number": 5, "model": "*", "kind": "replan"},
    ):
        made.facts.decisions.append(replace(first, **change))
    standing = made.facts.standing()
    assert standing is not None
    (found,) = made.facts.last_decisions(standing)
    assert (found["model"], found["number"], found["cause"]) == ("tiny", 2, "c")
    made.facts.decisions.clear()
    made.facts.decisions.append(first)
    assert made.facts.last_decisions(standing)[0]["cause"] == "a"


@pytest.mark.parametrize("address", ["", "8702", "host:", ":80", "host:99999", "host:x", "[]:80"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="not HOST:PORT"):
        parse_listen(address)


async def test_an_invalid_host_name_is_refused(made: Made) -> None:
    server = HealthServer(
        "a..b:0",
        made.metrics,
        made.metrics,
        SILENT,
        lambda: True,  # type: ignore[arg-type]
    )
    with pytest.raises(UserError, match=r"--http a\.\.b:0: "):
        await server.start()


@pytest.mark.parametrize(
    ("address", "url"),
    [("[::1]:0", r"http://\[::1\]:\d+"), ("127.0.0.1:0", r"http://127.0.0.1:\d+")],
)
async def test_the_controller_listens_on_ipv4_and_ipv6(made: Made, address: str, url: str) -> None:
    server = HealthServer(
        address,
        made.metrics,
        made.metrics,
        SILENT,
        lambda: True,  # type: ignore[arg-type]
    )
    await server.start()
    try:
        assert re.fullmatch(url, server.url)
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as got:
            assert got.status == 200
    finally:
        await server.close()
