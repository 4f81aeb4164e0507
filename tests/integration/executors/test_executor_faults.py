"""Executors and engines that are killed, started twice, hung or cut off: no process is left over or
runs twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import aiohttp

from executors.node.state_store import StateStore
from tests.hang_limit import HANG_S
from tests.integration.executors.conftest import Harness, alive, stop, wish
from topics.keys import Keys
from topics.signing import sign_record
from topics.storage.durable_files import DRAFT


async def test_an_executor_killed_during_eight_launches_runs_each_engine_once(
    harness: Harness,
) -> None:
    """The executor may have started any number of the eight engines."""
    executor = harness.spawn(tree="relaunch")
    wishes = [wish(f"i{gpu}", gpu) for gpu in range(8)]
    await harness.assign(1, *wishes)
    while not harness.engines():
        await asyncio.sleep(0.001)
    executor.kill()
    executor.wait()
    begun = {pids[0] for pids in harness.engines().values()}
    executor = await harness.start(tree="relaunch")
    await harness.until_ready(*(w.instance for w in wishes))
    found = harness.pids()
    assert len(found) == 8 and all(len(pids) == 2 for pids in found.values())
    assert begun <= {pids[0] for pids in found.values()}, "what was begun is taken over"


async def test_all_processes_of_an_engine_end_before_it_restarts(harness: Harness) -> None:
    """If only the API server is killed, the core ends too. If only the core is killed, the server
    ends with code 0. If only the core is suspended, missing tokens show it to the executor.
    """
    await harness.start(tree="relaunch")
    await harness.assign(1, *(wish(name, gpu) for gpu, name in enumerate("abc")))
    await harness.until_ready("a", "b", "c")
    old = harness.pids()
    assert [len(pids) for pids in old.values()] == [2, 2, 2]
    os.kill(old["a"][0], signal.SIGKILL)
    os.kill(old["b"][1], signal.SIGKILL)
    os.kill(old["c"][1], signal.SIGSTOP)
    for name, pids in old.items():
        await harness.until(
            lambda n=name: (i := harness.get(n)) and (i.restarts, i.state) == (1, "ready"),
            f"{name} restarted",
        )
        assert not any(alive(pid) for pid in pids)
    assert [len(pids) for pids in harness.pids().values()] == [2, 2, 2]


async def test_the_next_executor_kills_the_remaining_core_of_a_dead_engine(
    harness: Harness,
) -> None:
    """Executor and API server both die. The remaining core occupies a GPU."""
    executor = await harness.start(tree="relaunch")
    await harness.assign(1, wish("a", 0))
    await harness.until_ready("a")
    server, core = harness.pids()["a"]
    executor.kill()
    executor.wait()
    os.kill(server, signal.SIGKILL)
    assert alive(core)
    harness.status = None
    await harness.start(tree="relaunch")
    await harness.until_ready("a")
    assert not alive(core)
    assert harness.pids()["a"][0] != server
    assert harness.metric("shoal_executor_orphans_total") == 1


async def test_a_drain_continues_after_the_executor_is_killed(
    harness: Harness, tmp_path: Path
) -> None:
    """The request in flight is answered. Then all processes of the engine are gone."""
    executor = await harness.start(tree="relaunch")
    await harness.assign(1, wish("a", 0))
    ready = await harness.until_state("a", "ready")
    pids = harness.pids()["a"]
    async with aiohttp.ClientSession() as client:
        url = f"http://{ready.endpoint}/v1/completions"
        may_end = tmp_path / "may-end"
        headers = {"X-Until-File": str(may_end)}
        job = asyncio.create_task(client.post(url, json={}, headers=headers))
        await asyncio.sleep(0.2)
        await harness.assign(2, wish("a", 0, drain=True))
        await harness.until_state("a", "draining")
        executor.kill()
        executor.wait()
        harness.status = None
        await harness.start(tree="relaunch")
        await harness.until_state("a", "draining")
        may_end.touch()
        assert (await job).status == 200
    await harness.until_state("a", "stopped")
    assert not any(alive(pid) for pid in pids)


async def test_two_executors_of_one_node_do_not_both_start_engines(harness: Harness) -> None:
    """With a common folder the second executor is refused at once. With two folders (two hosts) it
    does not act, and names the executor that has the node.
    """
    await harness.start(tree="relaunch")
    await harness.assign(1, wish("a", 0))
    await harness.until_ready("a")
    second = harness.spawn()
    assert await asyncio.to_thread(second.wait, HANG_S) == 2
    assert "in use by another executor" in harness.log.read_text()
    other = harness.config("elsewhere", executor="ex-2")
    await harness.start(other, tree="relaunch")
    await harness.assign(2, wish("a", 0), wish("b", 1))
    await harness.until_ready("a", "b")
    refused = f"holds {harness.node}; this executor starts nothing"
    await harness.until(lambda: refused in harness.log.read_text(), "the second one says so")
    assert {status.executor for status in harness.statuses if status.instances} == {"ex-1"}
    assert len(harness.pids()) == 2
    assert harness.engines("elsewhere") == {}


async def test_unclaimed_tokens_have_no_lasting_effect(harness: Harness) -> None:
    """A token of 10^12 is refused. The legitimate leader is followed meanwhile, and after a
    restart. A lower token is refused and counted. A hundred copies start no engine.
    """
    executor = await harness.start(tree="relaunch")
    await harness.assign(7, wish("x", 7), token=10**12)
    await harness.assign(1, wish("a", 0))
    await harness.until_ready("a")
    for _ in range(100):
        await harness.assign(1, wish("a", 0))
    await harness.assign(9, wish("b", 1), token=0)
    refused = "shoal_executor_refused_assignments_total"
    await harness.until(
        lambda: harness.metric(refused + '{reason="leader token"}') == 1, "refused a lower one"
    )
    assert harness.metric("shoal_executor_launches_total") == 1
    executor.kill()
    executor.wait()
    await harness.start(tree="relaunch")
    await harness.assign(2, wish("a", 0), wish("c", 2))
    await harness.until_ready("a", "c")
    assert sorted(harness.pids()) == ["a", "c"]


async def test_without_a_broker_the_last_assignment_stays_in_force(harness: Harness) -> None:
    """The executor is killed and starts again without a broker. It adopts running engines and
    restarts dead ones.
    """
    executor = await harness.start(tree="relaunch")
    await harness.assign(1, wish("a", 0), wish("b", 1))
    await harness.until_ready("a", "b")
    before = harness.pids()
    executor.kill()
    executor.wait()
    os.kill(before["a"][0], signal.SIGKILL)
    await harness.start(harness.config(broker="127.0.0.1:9"), tree="relaunch")
    ready = 'shoal_executor_instances{state="ready"}'
    await harness.until(lambda: harness.metric(ready) == 2, "both ready")
    after = harness.pids()
    assert after["b"] == before["b"]
    assert not set(after["a"]) & set(before["a"])


async def test_an_unwritable_folder_is_reported_and_serving_continues(
    harness: Harness,
) -> None:
    """The status names the file, and engines still start and stop. The fault ends when the file can
    be written again.
    """
    await harness.start(tree="relaunch")
    await harness.assign(1, wish("a", 0))
    await harness.until_ready("a")
    path = StateStore(harness.folder / "state").path(harness.node)
    in_the_way = path.with_name(path.name + DRAFT)
    in_the_way.mkdir()
    await harness.assign(2, wish("a", 0), wish("b", 1))
    await harness.until_ready("a", "b")
    await harness.until(lambda: harness.status.faults, "told")
    assert str(path) in harness.status.faults[0]
    await harness.assign(3, wish("b", 1))
    await harness.until(lambda: list(harness.pids()) == ["b"], "stopped")
    in_the_way.rmdir()
    await harness.until(lambda: not harness.status.faults, "over")


async def test_engines_get_a_closed_environment(harness: Harness) -> None:
    """Engines get no secret of the executor and see only their own GPUs."""
    await harness.start(tree="relaunch", KAFKA_PASSWORD="k", SHOAL_CLUSTER_KEY="")
    await harness.assign(1, wish("a", 2, 3))
    await harness.until_ready("a")
    for pid in harness.pids()["a"]:
        raw = subprocess.run(["cat", f"/proc/{pid}/environ"], capture_output=True, check=True)
        names = {item.partition(b"=")[0] for item in raw.stdout.split(b"\0")}
        assert b"KAFKA_PASSWORD" not in names
        assert b"CUDA_VISIBLE_DEVICES=2,3" in raw.stdout.split(b"\0")
    await harness.assign(2)
    await harness.until(lambda: not harness.engines(), "ended")


async def test_roles_are_switched_by_routing_by_relaunch_or_rolled_back(harness: Harness) -> None:
    """By routing the process stays; by relaunch a new process serves. If the new role does not
    start, the old one serves again and the status gives the reason. The duration of each switch is
    measured.
    """
    for strategy, stays, phase in (
        ("routing", True, "decode"), ("relaunch", False, "decode"), ("relaunch-broken", False, ""),
    ):  # fmt: skip
        executor = await harness.start(tree=strategy)
        name, first = f"i-{strategy}", 10 * len(harness.statuses)
        await harness.assign(first, wish(name, 0, phase="prefill"))
        await harness.until_ready(name)
        before = harness.pids()[name]
        await harness.assign(first + 1, wish(name, 0, phase="decode"))
        wanted = phase or "prefill"
        await harness.until(
            lambda n=name, w=wanted, p=phase: (
                (i := harness.get(n))
                and (i.state, i.phase) == ("ready", w)
                and (p or "no decode here" in i.reason)
            ),
            strategy,
        )
        assert (harness.pids()[name] == before) is stays
        assert harness.metric("shoal_role_switch_seconds_count") == 1
        await harness.assign(first + 2)
        await harness.until(lambda: not harness.engines(), "ended")
        stop(executor)


async def test_with_a_key_only_signed_assignments_are_followed(harness: Harness) -> None:
    """An assignment that is unsigned, or signed for another node, is refused and counted."""
    keys = Keys("k" * 32)
    await harness.start(tree="relaunch", SHOAL_CLUSTER_KEY=keys.cluster)
    await harness.assign(9, wish("forged", 0))
    other = replace(sign_record(harness.assignment(9, wish("x", 0)), keys, 0, 0), generation=10)
    assert await harness.kafka.publish("assignments", harness.node, other)
    true = sign_record(harness.assignment(1, wish("a", 0)), keys, 0, 0)
    assert await harness.kafka.publish("assignments", harness.node, true)
    await harness.until_ready("a")
    assert harness.metric("shoal_executor_forged_records") == 2
    assert list(harness.pids()) == ["a"]
