"""Ranks of an instance over several nodes with a real executor (here two GPUs of one node)."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

from tests.integration.executors.conftest import Harness
from topics.instance_ranks import GangRank, GangStage
from topics.records import DesiredInstance

STAGES = (GangStage("H100-SXM", 1, 16), GangStage("H100-SXM", 1, 16))


def rank(number: int, rendezvous: str = "", drain: bool = False) -> DesiredInstance:
    gang = GangRank("mini-1-a0", number, STAGES, rendezvous)
    return DesiredInstance(
        f"mini-1-a{number}", "mini", "aggregated", "mini:a1.16@p>a1.16@p:1", (number,),
        drain=drain, gang=gang,
    )  # fmt: skip


async def met(harness: Harness) -> str:
    """Assign both ranks and wait until they are ready; return their rendezvous."""
    await harness.assign(1, rank(0), rank(1))
    await harness.until(
        lambda: (i := harness.get("mini-1-a0")) and i.gang and i.gang.rendezvous, "a rendezvous"
    )
    waiting, first = harness.get("mini-1-a1"), harness.get("mini-1-a0")
    assert waiting is not None
    assert first is not None
    assert first.gang is not None
    assert (waiting.state, waiting.reason) == ("starting", "waits for rank 0")
    where = first.gang.rendezvous
    await harness.assign(2, rank(0, where), rank(1, where))
    await harness.until_ready("mini-1-a0", "mini-1-a1")
    return where


async def test_ranks_are_adopted_with_rendezvous_and_drain_in_order(harness: Harness) -> None:
    """The executor adopts them by their record or only by their tag, with rank and rendezvous. No
    rank runs twice.
    """
    process = await harness.start()
    where = await met(harness)
    pids = harness.pids()
    for forget in (False, True):
        process.kill()
        process.wait()
        if forget:
            for path in (harness.folder / "state").glob("*.json"):
                path.unlink()
        harness.status = None
        process = await harness.start()
        await harness.until_ready("mini-1-a0", "mini-1-a1")
        seen = harness.get("mini-1-a0"), harness.get("mini-1-a1")
        assert [(i.gang.rank, i.endpoint != "") for i in seen if i and i.gang] == [
            (0, True),
            (1, False),
        ]
        assert seen[0] is not None
        assert seen[0].gang is not None
        assert seen[0].gang.rendezvous == where
        assert harness.pids() == pids
    await harness.assign(3, rank(0, where, drain=True), rank(1, where))
    await harness.until_state("mini-1-a0", "stopped")
    assert list(harness.pids()) == ["mini-1-a1"], "it stays until it gets an order, as vLLM's does"
    await harness.assign(4, rank(1, where, drain=True))
    await harness.until(lambda: not harness.engines(), "nothing left")


async def test_a_dead_rank_fails_and_the_other_is_killed_by_assignment(harness: Harness) -> None:
    """The executor does not restart one rank alone. It does not wait for the requests of the
    remaining rank.
    """
    await harness.start()
    where = await met(harness)
    (pid,) = harness.pids()["mini-1-a1"][:1]
    os.kill(pid, signal.SIGKILL)
    failed = await harness.until_state("mini-1-a1", "failed")
    assert failed.reason == "rank 1 of 2: signal SIGKILL"
    wishes = (rank(0, where, drain=True), rank(1, where, drain=True))
    broken = (replace(w, gang=replace(w.gang, broken=True)) for w in wishes if w.gang)
    await harness.assign(3, *broken)
    await harness.until_state("mini-1-a0", "stopped")
    assert harness.engines() == {}
