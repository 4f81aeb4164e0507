"""ShoalModel objects by the reports of a controller, on a cluster in memory."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from executors.kubernetes import kube_names as names
from executors.kubernetes import model_objects
from executors.kubernetes.controller_status import ControllerStatus, DecisionReport, ModelReport
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_errors import kube_error
from executors.kubernetes.kube_kinds import POD, SHOAL_MODEL, Kind
from executors.kubernetes.model_objects import FIGURES_S, MOST_WRITES, REFUSED_S, ModelObjects
from executors.kubernetes.pod_fleet import PodFleet
from tests.unit.kubernetes.fake_cluster import FakeCluster

ROUND_S = model_objects.EVERY_S
AT = datetime(2026, 11, 30, 19, 0, tzinfo=UTC)
CHAT = ModelReport(
    "chat", "act", 3, 2, 4.2, 0.9876, "ok", ("steady",), "steady",
    DecisionReport("scale_out", "demand_rises", "demand at most 9 req/s", AT),
)  # fmt: skip
QWEN = replace(CHAT, model="Qwen/Qwen3-8B", decision=None)
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "name": "serving", "uid": "uid-namespace"}


class Cluster(FakeCluster):
    """refuses: an error for every write of a ShoalModel."""

    refuses: Exception | None = None

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._refuse(kind)
        return await super().create(kind, manifest)

    async def patch_status(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        self._refuse(kind)
        return await super().patch_status(kind, name, change)

    def _refuse(self, kind: Kind) -> None:
        if self.refuses is not None and kind is SHOAL_MODEL:
            self.writes.append(("refused", kind.plural, ""))
            raise self.refuses


class Bench:
    """One executor. reports: what the controller answers, None = it does not answer."""

    def __init__(self, cluster: Cluster, executor: str = "ex") -> None:
        self.cluster = cluster
        self.now_s = 1000.0
        self.reports: list[ModelReport] | None = [CHAT, QWEN]
        self.fleet = PodFleet(cluster, "", with_nodes=False)
        self.objects = ModelObjects(self.fleet, self, executor, {"slot.0"}, lambda: self.now_s)
        self._tasks = [asyncio.create_task(self.objects.objects.run()),
                       asyncio.create_task(self.fleet.pods.run())]  # fmt: skip

    async def read(self) -> dict[str, ModelReport] | None:
        return None if self.reports is None else {one.model: one for one in self.reports}

    async def step(self, after_s: float = ROUND_S) -> list[tuple[str, str, str]]:
        """One round after `after_s`; returns its writes, without Events."""
        self.now_s += after_s
        await self.settle()
        self.cluster.writes.clear()
        await self.objects.step()
        await self.settle()
        return [one for one in self.cluster.writes if one[1] != "events"]

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    def status(self, name: str) -> Any:
        return self.cluster.objects["shoalmodels", name]["status"]

    def condition(self, name: str, kind: str) -> Any:
        return next(one for one in self.status(name)["conditions"] if one["type"] == kind)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fleet.close()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench(Cluster())
    await made.settle()
    yield made
    await made.close()


async def test_every_declared_model_has_an_object_with_its_status(bench: Bench) -> None:
    await bench.step()
    name = names.object_name("Qwen/Qwen3-8B")
    assert bench.cluster.names(SHOAL_MODEL) == sorted(["chat", name])
    assert bench.cluster.objects["shoalmodels", name]["spec"] == {"model": "Qwen/Qwen3-8B"}
    found = bench.status("chat")
    assert (found["wanted"], found["ready"], found["mode"]) == (3, 2, "act")
    assert (found["usdPerHour"], found["sloAttainment"]) == (4.2, 0.988)
    assert found["lastDecision"] == {
        "kind": "ScaleOut", "cause": "DemandRises", "message": "demand at most 9 req/s",
        "time": "2026-11-30T19:00:00Z",
    }  # fmt: skip
    assert "lastDecision" not in bench.status(name)
    states = {one["type"]: (one["status"], one["reason"]) for one in found["conditions"]}
    assert states == {
        "Reported": ("True", "Reported"), "Ready": ("False", "NotAllReady"),
        "Healthy": ("True", "Steady"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "model", ["chat", "Chat", "meta-llama/Llama-3.1-8B", "a.b", "-", "..", "ü", "a" * 300, "9"]
)
def test_every_name_of_a_model_gives_a_valid_name_of_its_own(model: str) -> None:
    found = names.object_name(model)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", found)
    assert found != names.object_name(model + "x")
    assert found != names.object_name(model.swapcase()) or model.swapcase() == model


async def test_only_changes_are_written_and_figures_at_most_once_a_minute(bench: Bench) -> None:
    await bench.step()
    assert await bench.step() == []
    bench.reports = [replace(CHAT, usd_per_h=5.0, text="3.1 req/s"), QWEN]
    assert await bench.step() == []
    patch = ("patch", "shoalmodels", "chat")
    assert await bench.step(FIGURES_S) == [patch]
    assert bench.status("chat")["usdPerHour"] == 5.0
    bench.reports = [replace(bench.reports[0], ready=3), QWEN]
    assert await bench.step() == [patch]
    assert bench.condition("chat", "Ready")["status"] == "True"
    bench.reports = [replace(bench.reports[0], attained=None), QWEN]
    assert await bench.step(FIGURES_S) == [patch]
    assert "sloAttainment" not in bench.status("chat")


async def test_the_time_of_a_transition_stays_while_the_status_does(bench: Bench) -> None:
    await bench.step()
    old = "2020-01-01T00:00:00Z"
    found = [{**one, "lastTransitionTime": old} for one in bench.status("chat")["conditions"]]
    bench.cluster.change(SHOAL_MODEL, "chat", {"status": {"conditions": found}})
    bench.reports = [replace(CHAT, ready=3, codes=("growing",)), QWEN]
    await bench.step()
    assert bench.condition("chat", "Healthy")["reason"] == "Growing"
    assert bench.condition("chat", "Healthy")["lastTransitionTime"] == old
    assert bench.condition("chat", "Ready")["lastTransitionTime"] > old


async def test_a_decision_is_an_event_once_and_stays_until_the_next(bench: Bench) -> None:
    def events() -> list[tuple[str, str]]:
        found = [one for (plural, _), one in bench.cluster.objects.items() if plural == "events"]
        return [(one["involvedObject"]["name"], one["reason"]) for one in found]

    await bench.step()
    await bench.settle()
    assert events() == [("chat", "ScaleOut")]
    # A new controller does not know earlier decisions, and a new executor no earlier Events.
    bench.reports = [replace(CHAT, decision=None), QWEN]
    assert await bench.step() == []
    later = Bench(bench.cluster)
    later.reports = [CHAT, QWEN]
    await later.settle()
    assert await later.step() == []
    assert CHAT.decision is not None
    later.reports = [replace(CHAT, decision=replace(CHAT.decision, kind="infeasible")), QWEN]
    await later.step()
    await later.settle()
    assert events() == [("chat", "ScaleOut"), ("chat", "Infeasible")]
    await later.close()


async def test_the_object_of_a_withdrawn_model_is_deleted_after_a_minute(bench: Bench) -> None:
    await bench.step()
    bench.reports = [CHAT]
    for _ in range(11):
        assert await bench.step() == []
    bench.reports = [CHAT, QWEN]
    assert await bench.step() == []
    bench.reports = [CHAT]
    for _ in range(11):
        assert await bench.step() == []
    await bench.step()
    assert bench.cluster.names(SHOAL_MODEL) == ["chat"]


async def test_a_new_leader_that_knows_fewer_models_at_first_deletes_none(bench: Bench) -> None:
    await bench.step()
    bench.reports = None
    for _ in range(30):
        await bench.step()
    bench.reports = [CHAT]
    await bench.step()
    await bench.step()
    bench.reports = [CHAT, QWEN]
    await bench.step()
    assert len(bench.cluster.names(SHOAL_MODEL)) == 2


async def test_without_a_leader_the_figures_stay_and_the_conditions_say_so(bench: Bench) -> None:
    await bench.step()
    bench.reports = None
    for _ in range(5):
        assert await bench.step() == []
    assert len(await bench.step()) == 2
    assert bench.status("chat")["wanted"] == 3
    for kind in ("Reported", "Ready", "Healthy"):
        found = bench.condition("chat", kind)
        assert (found["status"], found["reason"]) == ("Unknown", "NoController")
    assert await bench.step(FIGURES_S) == []
    bench.reports = [CHAT, QWEN]
    assert len(await bench.step()) == 2
    assert bench.condition("chat", "Reported")["status"] == "True"


def by_hand(name: str, model: str, **labels: str) -> Manifest:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"model": model}}


async def test_an_object_made_by_hand_says_that_it_declares_nothing(bench: Bench) -> None:
    bench.cluster.put(SHOAL_MODEL, by_hand("new", "new"))
    bench.cluster.put(SHOAL_MODEL, by_hand("chat-2", "chat", **{names.EXECUTOR: "ex"}))
    bench.cluster.put(SHOAL_MODEL, by_hand("chat", "chat"))
    await bench.step()
    assert bench.condition("new", "Reported")["reason"] == "NotDeclared"
    assert bench.condition("chat-2", "Reported")["reason"] == "OtherObject"
    assert "chat shows chat" in bench.condition("chat-2", "Reported")["message"]
    assert bench.status("chat")["wanted"] == 3
    bench.reports = []
    for _ in range(30):
        await bench.step()
    # Shoal deletes only what it made.
    assert bench.cluster.names(SHOAL_MODEL) == ["chat", "chat-2", "new"]
    assert bench.condition("chat", "Reported")["reason"] == "NotDeclared"
    assert "wanted" not in bench.status("chat")


async def test_objects_of_another_executor_are_left_alone(bench: Bench) -> None:
    theirs = {names.EXECUTOR: "other"}
    bench.cluster.put(SHOAL_MODEL, by_hand("chat", "chat", **theirs))
    bench.cluster.put(SHOAL_MODEL, by_hand("mail", "mail", **theirs))
    bench.reports = [CHAT]
    assert [await bench.step() for _ in range(30)] == [[]] * 30


async def test_a_deleted_object_and_a_changed_status_come_back(bench: Bench) -> None:
    await bench.step()
    bench.cluster.remove(SHOAL_MODEL, "chat")
    await bench.step()
    assert bench.status("chat")["wanted"] == 3
    bench.cluster.change(SHOAL_MODEL, "chat", {"status": {"wanted": 99, "mode": None}})
    await bench.step()
    assert (bench.status("chat")["wanted"], bench.status("chat")["mode"]) == (3, "act")


async def test_a_refused_write_is_one_request_a_minute(bench: Bench) -> None:
    bench.cluster.refuses = kube_error(403, "Forbidden", 'User "x" cannot create resource "y"')
    refused = [("refused", "shoalmodels", "")]
    assert await bench.step() == refused
    rounds = int(REFUSED_S / ROUND_S)
    assert [await bench.step() for _ in range(rounds - 1)] == [[]] * (rounds - 1)
    assert await bench.step() == refused
    bench.cluster.refuses = None
    await bench.step(REFUSED_S)
    assert len(bench.cluster.names(SHOAL_MODEL)) == 2


async def test_an_absent_server_gets_one_request_a_round(bench: Bench) -> None:
    bench.cluster.refuses = kube_error(503, "", "away")
    assert await bench.step() == [("refused", "shoalmodels", "")]
    bench.cluster.refuses = kube_error(429, "", "slow down", retry_after_s=20.0)
    assert await bench.step() == [("refused", "shoalmodels", "")]
    assert [await bench.step() for _ in range(3)] == [[]] * 3
    assert await bench.step() == [("refused", "shoalmodels", "")]


async def test_an_object_that_the_server_finds_invalid_does_not_stop_others(bench: Bench) -> None:
    bench.cluster.refuses = kube_error(422, "Invalid", "no")
    assert len(await bench.step()) == 2
    assert await bench.step() == []
    bench.cluster.refuses = None
    await bench.step(REFUSED_S)
    assert len(bench.cluster.names(SHOAL_MODEL)) == 2


async def test_a_round_has_few_writes_and_urgent_ones_come_first(bench: Bench) -> None:
    bench.reports = [replace(CHAT, model=f"m{n}", decision=None) for n in range(100)]
    for _ in range(100 // MOST_WRITES):
        assert len(await bench.step()) <= 2 * MOST_WRITES  # a create and its status
    assert len(bench.cluster.names(SHOAL_MODEL)) == 100
    bench.reports = [replace(one, usd_per_h=9.0) for one in bench.reports]
    bench.reports[73] = replace(bench.reports[73], ready=0)
    writes = await bench.step(FIGURES_S)
    assert len(writes) == MOST_WRITES and writes[0][2] == "m73"


def pod(name: str, *owners: Manifest, **labels: str) -> Manifest:
    usual = {names.MANAGED: "true", names.MODEL: "chat", names.SLOT: "slot.0"}
    own = {key: value for key, value in {**usual, **labels}.items() if value}
    return {"metadata": {"name": name, "labels": own, "ownerReferences": list(owners)}, "spec": {}}


async def test_pods_of_the_namespace_get_their_model_as_a_second_owner(bench: Bench) -> None:
    """A pod without another owner would be deleted with the object, so it gets none."""
    bench.cluster.put(POD, pod("own", {**NAMESPACE, "controller": True}))
    bench.cluster.put(POD, pod("bare"))
    bench.cluster.put(POD, pod("foreign", NAMESPACE, **{names.MANAGED: ""}))
    bench.cluster.put(POD, pod("elsewhere", NAMESPACE, **{names.SLOT: "slot.9"}))
    await bench.step()
    await bench.step()
    assert await bench.step() == []

    def owners(name: str) -> Any:
        return bench.cluster.objects["pods", name]["metadata"]["ownerReferences"]

    uid = bench.cluster.objects["shoalmodels", "chat"]["metadata"]["uid"]
    model = {"apiVersion": "shoal.dev/v1alpha1", "kind": "ShoalModel", "name": "chat", "uid": uid}
    assert owners("own") == [{**NAMESPACE, "controller": True}, model]
    assert owners("bare") == [] and owners("foreign") == owners("elsewhere") == [NAMESPACE]
    bench.cluster.remove(SHOAL_MODEL, "chat")
    await bench.step()
    await bench.step()
    again = bench.cluster.objects["shoalmodels", "chat"]["metadata"]["uid"]
    assert again != uid
    assert owners("own") == [{**NAMESPACE, "controller": True}, {**model, "uid": again}]


STATUS: Any = {
    "leads": True, "usd_per_h": 3.0,
    "models": [{"model": "chat", "mode": "act", "wanted": 3, "ready": 2, "usd_per_h": 4.2,
                "attained": None, "level": "broken", "conditions": ["not_served"],
                "word": "3 req/s unserved", "remedy": "raise max"}],
    "last_decisions": [{"model": "chat", "kind": "scale_out", "cause": "rises", "reason": "why",
                        "at_ms": 1796065200000}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "models", "fault"),
    [
        (STATUS, ["chat"], ""),
        ({**STATUS, "models": []}, [], ""),
        ({**STATUS, "leads": False, "models": []}, None, "no leader answers"),
        ({**STATUS, "usd_per_h": None, "models": []}, None, "no leader answers"),
        ({}, None, "leads"),
        ([], None, "list indices"),
        ({**STATUS, "models": [{"model": "chat"}]}, None, "attained"),
        ({**STATUS, "last_decisions": [{**STATUS["last_decisions"][0], "at_ms": 1e300}]}, None, ""),
        (401, None, "set SHOAL_READ_TOKEN or SHOAL_READ_TOKEN_FILE"),
        (None, None, "size"),
    ],
)
async def test_the_reports_are_those_of_a_leader_that_has_decided(
    answer: Any, models: list[str] | None, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []

    async def status(request: web.Request) -> web.StreamResponse:
        heard.append(request.headers.get("Authorization"))
        if isinstance(answer, int):
            return web.Response(status=answer)
        if answer is None:
            return web.Response(body=b" " * (17 << 20))
        return web.json_response(answer)

    app = web.Application()
    app.router.add_get("/v1/status", status)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("SHOAL_READ_TOKEN", "r" * 16)
    async with aiohttp.ClientSession() as client:
        source = ControllerStatus(f"http://127.0.0.1:{runner.addresses[0][1]}/", client)
        found = await source.read()
        assert (None if found is None else list(found)) == models
        assert bool(source.fault) is (models is None) and fault in source.fault
        assert heard == [f"Bearer {'r' * 16}"]
        await runner.cleanup()
        assert await source.read() is None
    if found:
        assert found["chat"].text == "3 req/s unserved: raise max"
        assert found["chat"].decision is not None and found["chat"].decision.kind == "scale_out"
