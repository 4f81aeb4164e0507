"""The event hub numbers events, resumes viewers, and isolates slow viewers from others."""

from __future__ import annotations

import asyncio

import pytest

from streams.console import event_hub
from streams.console.event_hub import EventHub
from tests.hang_limit import HANG_S


async def collect(hub: EventHub, last_id: str, most: int) -> list[bytes]:
    found = []
    events = hub.follow(last_id)
    async for event in events:
        if event.startswith((b"id", b"event")):
            found.append(event)
            if len(found) == most:
                break
    await events.aclose()
    return found


async def test_a_viewer_gets_the_events_that_it_missed_in_order() -> None:
    hub = EventHub("s")
    for number in range(5):
        hub.publish("change", b"%d" % number)
    found = await collect(hub, "s:2", 3)
    assert [event.split(b"\n")[0] for event in found] == [b"id: s:3", b"id: s:4", b"id: s:5"]


async def test_an_id_that_is_no_longer_kept_resets_the_viewer() -> None:
    hub = EventHub("s", kept_bytes=200)
    for _ in range(20):
        hub.publish("change", b"x" * 50)
    assert (await collect(hub, "s:1", 1))[0].startswith(b"event: reset")


async def test_a_slow_viewer_is_dropped_and_others_go_on() -> None:
    hub = EventHub("s", queue=3)
    slow, quick = hub.follow("s:0"), hub.follow("s:0")
    await anext(slow)
    await anext(quick)
    for number in range(6):
        hub.publish("change", b"%d" % number)
        assert b"data: %d" % number in await anext(quick)
    assert (hub.viewers, hub.dropped) == (1, 1)
    rest = [event async for event in slow]
    assert len(rest) <= 3  # and the stream ends
    await quick.aclose()
    assert hub.viewers == 0


async def test_the_number_of_viewers_and_the_kept_bytes_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_hub, "MOST_VIEWERS", 2)
    hub = EventHub("s", kept_bytes=10_000)
    viewers = [hub.follow("") for _ in range(3)]
    for viewer in viewers:
        await anext(viewer)
    assert hub.viewers == 2
    for _ in range(1000):
        hub.publish("change", b"y" * 500)
    assert hub._bytes <= 10_000
    hub.close()
    for viewer in viewers:
        async with asyncio.timeout(HANG_S):
            assert len([event async for event in viewer]) <= 31


async def test_a_new_viewer_replaces_the_oldest_one_of_the_client_with_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_hub, "MOST_VIEWERS", 5)
    hub = EventHub("s")
    ann = hub.follow("", "ann")
    await anext(ann)
    eve = [hub.follow("", "eve") for _ in range(4)]
    for viewer in eve:
        await anext(viewer)
    bob = hub.follow("", "bob")
    await anext(bob)
    rest = [event async for event in eve[0]]
    assert len(rest) <= 1 and hub.viewers == 5  # the first of eve's has ended
    hub.publish("change", b"1")
    for viewer in (ann, bob, eve[1]):
        assert b"reset" in await anext(viewer) and b"data: 1" in await anext(viewer)
    hub.close()
