"""Turns and blocks: what keeps one client's large requests from holding up everybody else."""

from __future__ import annotations

import asyncio

from executors.gateway.wire.blocks import Gathering
from executors.gateway.wire.turns import Turns


def test_one_step_is_taken_in_an_iteration_and_what_has_no_turn_waits_for_one_at_most() -> None:
    async def run() -> list[str]:
        loop, done = asyncio.get_running_loop(), list[str]()
        turns = Turns(loop)
        for name in "abc":
            turns.take(lambda name=name: done.append(name))  # type: ignore[misc]
        loop.call_soon(done.append, "somebody else")
        while len(done) < 4:
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["a", "b", "somebody else", "c"]


def test_a_step_that_must_wait_is_taken_in_a_later_iteration_though_the_turn_is_free() -> None:
    async def run() -> list[str]:
        done = list[str]()
        turns = Turns(asyncio.get_running_loop())
        turns.wait(lambda: done.append("read"))
        done.append("now")
        while len(done) < 2:
            await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == ["now", "read"]


def test_blocks_joined_are_the_body_and_small_parts_make_few_of_them() -> None:
    gathering = Gathering()
    for number in range(200_000):
        gathering.add(b"%05d" % (number % 100_000))
    assert gathering.size == 1_000_000
    blocks = gathering.take()
    assert b"".join(blocks) == b"".join(b"%05d" % (n % 100_000) for n in range(200_000))
    assert len(blocks) <= 4
    assert gathering.take() == ()
    gathering.add(b"next")
    assert gathering.take() == (b"next",)


def test_a_large_part_is_kept_as_it_came() -> None:
    gathering, part = Gathering(), b"x" * 250_000
    for _ in range(3):
        gathering.add(part)
    assert all(block is part for block in gathering.take())
