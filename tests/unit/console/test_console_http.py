"""The console over HTTP: files, snapshot, events, tokens and commands."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from autoscaler.domain.cluster import Mode
from streams.tools.up.console_notes import ConsoleNotes
from tests.unit.console.console_world import OPERATOR, World, world
from topics.supply import Price

READ = "a-token-for-reads"


async def get(at: World, path: str, **headers: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(at.url + path, headers=headers) as answer,
    ):
        body = await answer.text()
        return answer.status, json.loads(body) if body.startswith("{") else body


async def command(at: World, token: str = OPERATOR, **asked: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(at.url + "/v1/controls", json=asked, headers=headers) as answer,
    ):
        return answer.status, json.loads(await answer.text())


async def events(answer: aiohttp.ClientResponse, most: int) -> list[tuple[str, str, Any]]:
    """The next `most` events of a stream, as (id, kind, data)."""
    found: list[tuple[str, str, Any]] = []
    fields: dict[str, str] = {}
    while len(found) < most:
        line = (await answer.content.readline()).decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "data" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
            fields = {}
    return found


async def test_the_page_allows_nothing_inline_and_nothing_from_elsewhere() -> None:
    async with world() as at, aiohttp.ClientSession() as session:
        async with session.get(at.url + "/") as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert answer.status == 200 and answer.content_type == "text/html"
            assert "default-src 'none'" in policy and "unsafe" not in policy
            tag, page = answer.headers["ETag"], await answer.text()
        assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
        assert "<style" not in page and " style=" not in page and " onload" not in page
        async with session.get(at.url + "/", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 304
        for path in (
            "/console/../console_feed.py",
            "/console/%2e%2e/console_feed.py",
            "/console/no",
        ):
            async with session.get(at.url + path) as answer:
                assert answer.status == 404


async def test_a_page_starts_from_a_snapshot_and_continues_with_changes() -> None:
    async with world() as at, aiohttp.ClientSession() as session:
        at.run(3)
        _, snapshot = await get(at, "/v1/console")
        assert snapshot["source"] == "live" and set(snapshot["models"]) == {"tiny"}
        assert snapshot["models"]["tiny"]["ttft_limit"] == 2000.0
        assert snapshot["pools"]["us/l4/spot"]["price"] == 0.4
        headers = {"Last-Event-ID": snapshot["event"]}
        async with session.get(at.url + "/v1/events", headers=headers) as stream:
            at.run(20)
            at.feed.step()
            ((last_id, kind, data),) = await events(stream, 1)
            assert kind == "change" and data["now_ms"] > snapshot["now_ms"]
            assert data["sample"]["of"]["tiny"]["target"] == 1.0
            assert "pools" not in data  # Nothing changed.
        # The connection is lost; the next one continues after the last id.
        at.run(1)
        at.feed.step()
        headers = {"Last-Event-ID": last_id}
        async with session.get(at.url + "/v1/events", headers=headers) as stream:
            ((resumed, _, _),) = await events(stream, 1)
        assert int(resumed.split(":")[1]) == int(last_id.split(":")[1]) + 1


@pytest.mark.parametrize("last_id", ["", "other-controller:7", "nonsense", "{stream}:99999999"])
async def test_a_page_that_cannot_continue_is_told_to_read_everything(last_id: str) -> None:
    async with world() as at, aiohttp.ClientSession() as session:
        at.run(1)
        headers = {"Last-Event-ID": last_id.format(stream=at.feed.stream)}
        async with session.get(at.url + "/v1/events", headers=headers) as stream:
            ((_, kind, _),) = await events(stream, 1)
        assert kind == "reset"


async def test_reads_of_data_need_the_read_token_and_files_do_not() -> None:
    async with world(read_token=READ) as at:
        at.run(1)
        for path in ("/v1/console", "/v1/events", "/v1/console/history", "/v1/console/decisions",
                     "/v1/console/reasons?model=tiny"):  # fmt: skip
            assert (await get(at, path))[0] == 401
        assert (await get(at, "/v1/console", Authorization=f"Bearer {READ}"))[0] == 200
        assert (await get(at, "/"))[0] == 200


async def test_a_proposal_is_approved_once_and_the_name_comes_from_the_token() -> None:
    async with world() as at:
        at.run(5)
        _, snapshot = await get(at, "/v1/console")
        waiting = snapshot["proposals"]["tiny"]
        assert waiting["change"].startswith("+") and waiting["expires"] > waiting["at"]
        asked = {"command": "approve", "proposal": waiting["number"], "who": "eve", "why": "ok"}
        assert waiting["token"] == 3
        code, said = await command(at, **asked)
        assert code == 200 and "approved" in said["said"]
        (control,) = at.written
        assert (control.kind, control.active, control.who, control.why) == (
            "verdict", True, "shared", "ok",
        )  # fmt: skip
        assert control.leader_token == 3
        code, said = await command(at, **asked)
        assert code == 409 and "approved already by shared 0 s ago: ok" in said["error"]
        assert said["first"]["who"] == "shared" and said["first"]["did"] == "approved"
        at.run(2)
        assert at.loop.state.published.assignments  # The change is applied.


async def test_a_pause_a_freeze_and_a_release_are_written_and_ended() -> None:
    async with world(mode=Mode.ACT) as at:
        at.run(2)
        for command_, end in (("pause", "resume"), ("freeze", "unfreeze"), ("release", "adopt")):
            code, said = await command(at, command=command_, model="tiny", who="ann", why="test")
            assert code == 200, said
            at.run(1)
            _, explained = await get(at, "/v1/explain/tiny")
            assert any("by shared: test" in guard for guard in explained["guards"]), command_
            assert (await command(at, command=end, model="tiny", who="ann"))[0] == 200
            at.run(1)
            _, explained = await get(at, "/v1/explain/tiny")
            assert not any("by shared" in guard for guard in explained["guards"]), end


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"command": "approve", "why": "x"}, "proposal: is missing"),
        ({"command": "pause", "model": "tiny", "why": "x", "version": -1}, "version: -1"),
        ({"command": "pause", "model": "tiny", "why": "x", "id": "a/b"}, "id: 'a/b'"),
        ({"command": "pause", "model": "tiny", "who": "ann"}, "why: ''"),
        ({"command": "pause", "model": "tini", "who": "ann", "why": "x"}, "did you mean tiny"),
        ({"command": "pause", "model": "tiny", "who": "ann", "why": "x", "for": "soon"}, "--for"),
        ({"command": "explode", "who": "ann"}, "'explode' is not allowed"),
        ({"command": "approve", "proposal": 99, "who": "ann"}, "no such proposal"),
        ({"command": "approve", "proposal": True, "who": "ann"}, "a number from 1"),
        ({"command": "resume", "model": "tiny", "who": "ann"}, "not paused"),
        ({"command": "pause", "model": 7, "who": "ann", "why": "x"}, "allowed: text"),
    ],
)
async def test_a_command_that_makes_no_sense_is_refused_with_the_field(
    asked: dict[str, Any], error: str
) -> None:
    async with world() as at:
        at.run(3)
        code, said = await command(at, **asked)
        assert code in (400, 409) and error in said["error"]
        assert at.written == []


async def test_a_command_without_the_operators_token_changes_nothing() -> None:
    asked = {"command": "pause", "model": "*", "who": "eve", "why": "x"}
    async with world() as at:
        assert (await command(at, token="wrong", **asked))[0] == 401
        async with aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {OPERATOR}", "Origin": "http://evil.example"}
            async with session.post(at.url + "/v1/controls", json=asked, headers=headers) as answer:
                assert answer.status == 403
            headers = {"Authorization": f"Bearer {OPERATOR}", "Content-Type": "text/plain"}
            async with session.post(at.url + "/v1/controls", data=b"{}", headers=headers) as answer:
                assert answer.status == 415
        assert at.written == []
    async with world(operator_token="") as at:
        code, said = await command(at, token="", **asked)
        assert code == 403 and "SHOAL_OPERATOR_TOKEN" in said["error"]
        assert (await get(at, "/v1/console"))[1]["can_write"] is False


async def test_a_command_that_the_broker_does_not_confirm_can_be_repeated_with_its_id() -> None:
    """It may have been written, so the answer does not claim that nothing has changed."""
    async with world() as at:
        at.broken = True
        code, said = await command(at, command="pause", model="*", why="x")
        assert code == 503 and "may still take effect" in said["error"]
        at.broken = False
        asked = {"command": "pause", "model": "*", "why": "x", "id": said["id"]}
        for _ in range(2):
            code, said = await command(at, **asked)
            assert code == 200 and said["version"] == 1
        assert len(at.written) == 1


@pytest.mark.parametrize("form", ["chunked", "gzip", "length"])
async def test_a_body_beyond_the_limit_is_refused_in_every_form(form: str) -> None:
    """A chunked body has no length in its head, and a compressed one has another."""
    asked = {"command": "pause", "model": "tiny", "who": "ann", "why": "x" * 20_000}
    raw = json.dumps(asked).encode()
    headers = {"Authorization": f"Bearer {OPERATOR}", "Content-Type": "application/json"}

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), 1000):
            yield raw[start : start + 1000]

    data: object = raw
    if form == "chunked":
        data = parts()
    elif form == "gzip":
        data, headers["Content-Encoding"] = gzip.compress(raw), "gzip"
        assert len(gzip.compress(raw)) < 8192
    async with world() as at, aiohttp.ClientSession() as session:
        async with session.post(at.url + "/v1/controls", data=data, headers=headers) as answer:
            assert answer.status == 413
        assert at.written == []


async def test_viewers_that_never_read_do_not_keep_others_out() -> None:
    async with world() as at:
        at.run(1)
        port = int(at.url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        for reader, writer in silent:
            writer.write(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in await reader.readline()
        assert at.feed.hub.viewers == 50
        async with (
            aiohttp.ClientSession() as session,
            session.get(at.url + "/v1/events") as stream,
        ):
            ((_, kind, _),) = await events(stream, 1)
            assert kind == "reset" and at.feed.hub.viewers == 50
        for _, writer in silent:
            writer.close()


async def test_a_standby_says_so_and_shows_no_figures() -> None:
    async with world() as at:
        at.run(3)
        at.leads = False
        _, snapshot = await get(at, "/v1/console")
        assert snapshot["controller"]["leads"] is False and snapshot["models"] == {}


async def test_decisions_carry_what_was_there_before_and_survive_a_take_over() -> None:
    async with world() as at:
        at.run(5)
        _, found = await get(at, "/v1/console")
        proposal = next(d for d in found["decisions"] if d["expires"])
        assert proposal["change"][0][1] > 0 and proposal["before"] == []
        _, everything = await get(at, "/v1/console/decisions")
        assert everything["decisions"] == found["decisions"]


async def test_alternatives_of_a_plan_are_computed_in_another_process() -> None:
    async with world() as at:
        at.run(3)
        _, found = await get(at, "/v1/console/reasons?model=tiny")
        assert found["reasons"]["model"] == "tiny" and found["reasons"]["bound_by"]
        _, found = await get(at, "/v1/console/reasons?model=none")
        assert found == {"error": "no plan of this model yet"}


async def test_alternatives_of_a_decision_are_those_of_the_plan_behind_it() -> None:
    async with world(mode=Mode.ACT) as at:
        at.run(3)
        at.feed.step()
        rows = at.feed.book.rows()
        change = next(row for row in rows if row["model"] == "tiny" and row["change"])
        assert change["planned_at"] <= change["at"]
        path = f"/v1/console/reasons?model=tiny&decision={change['token']}/{change['n']}"
        _, found = await get(at, path)
        assert found["reasons"]["model"] == "tiny" and found["at"] == change["planned_at"]
        _, found = await get(at, "/v1/console/reasons?model=tiny&decision=3/999")
        assert found == {"error": "the plan of this decision is no longer kept"}
        assert (await get(at, "/v1/console/reasons?model=tiny&decision=x/1"))[0] == 400


async def test_the_sizing_sum_comes_with_the_alternatives_of_a_model() -> None:
    async with world() as at:
        at.run(3)
        _, found = await get(at, "/v1/console/reasons?model=tiny")
        sizing = found["sizing"]
        needed = sizing["target_req_per_s"] / sizing["utilization"] / sizing["derate"]
        assert sizing["needed_req_per_s"] == pytest.approx(needed)


async def test_a_decision_shows_prices_that_differ_from_the_declared_ones() -> None:
    async with world(mode=Mode.ACT) as at:
        for pool, usd in (("us/l4/on-demand", 1.5), ("us/l4/spot", 0.6)):
            at.loop.latest.supply.usd_per_node_h[pool] = Price(pool, usd, at.tick_ms)
        at.run(3)
        at.feed.step()
        change = next(row for row in at.feed.book.rows() if row["change"])
        shown = {row["pool"]: (row["usd"], row["declared"]) for row in change["prices"]}
        assert (
            shown
            and shown.items()
            <= {
                "us/l4 (on-demand)": (1.5, 1.0),
                "us/l4 (spot)": (0.6, 0.4),
            }.items()
        )


async def test_a_note_of_an_operator_stands_in_the_time_line_once() -> None:
    async with world() as at, aiohttp.ClientSession() as session:

        async def note(token: str = OPERATOR, **asked: Any) -> tuple[int, str]:
            url, headers = at.url + "/v1/console/notes", {"Authorization": f"Bearer {token}"}
            async with session.post(url, json=asked, headers=headers) as answer:
                return answer.status, await answer.text()

        assert (await note("wrong-token-1234", text="gateway v7"))[0] == 401
        assert (await note(text="gateway v7", model="tinny"))[0] == 400
        assert (await note(text="a\nb"))[0] == (await note(text=""))[0] == 400
        assert await note(text="gateway v7", model="tiny") == (200, '{"said":"noted"}')
        at.feed.step()
        _, found = await get(at, "/v1/console")
        (row,) = [one for one in found["decisions"] if one["kind"] == "note"]
        assert (row["model"], row["reason"]) == ("tiny", "shared: gateway v7")


async def test_the_events_of_a_scenario_are_notes_and_their_loss_ends_nothing() -> None:
    async with world() as at:
        await ConsoleNotes(lambda: at.url, OPERATOR).send(["spot prices double", "node n1 is lost"])
        await ConsoleNotes(lambda: at.url, "a-wrong-token").send(["refused"])
        await ConsoleNotes(lambda: "http://127.0.0.1:1", OPERATOR).send(["lost"])
        await ConsoleNotes(str, OPERATOR).send(["too early"])
        at.feed.step()
        _, found = await get(at, "/v1/console")
        said = [one["reason"] for one in found["decisions"] if one["kind"] == "note"]
        assert said == ["shared: spot prices double", "shared: node n1 is lost"]


async def test_a_history_without_samples_has_its_series() -> None:
    async with world() as at:
        _, found = await get(at, "/v1/console/history?model=tiny")
        assert found["t"] == found["demand"] == found["attained"] == []
        _, found = await get(at, "/v1/console/history")
        assert found["t"] == found["usd"] == []
