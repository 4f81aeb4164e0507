"""The HTTP endpoint of the controller: documented metrics, health, status, and refused alerts."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.performance import catalog
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from streams.cli import explain, status
from streams.clock import Clock
from streams.controller.control_state import ControlState
from streams.controller.tick_loop import Loop, Ports, TickResult
from streams.files.user_errors import UserError
from streams.health.alert_webhook import MOST_BYTES, Webhook
from streams.health.controller_facts import Facts, Identity
from streams.health.controller_metrics import Metrics
from streams.health.listen_address import parse_listen
from streams.health.metric_names import BY_NAME, METRICS
from streams.health.status_server import HealthServer
from streams.health.tokens import BearerToken
from streams.solver.solver_client import plan_here
from topics.reason_codes import ReasonCode
from topics.records import Alert, Control, Price
from topics.time_base import TimeBase

TOKEN = "secret"
NOW_MS = 1_700_000_000_000
TINY = Service(
    model="tiny",
    architecture=catalog.quantized(catalog.model("meta-llama/Llama-3.1-8B-Instruct"), "fp8"),
    slo=Slo(2000.0, 100.0),
    lengths=Lengths(512.0, 128.0),
    req_per_s=1.0,
    mode=Mode.RECOMMEND,
)
POOL = Pool("r", "l4", catalog.gpu("L4"), 1, 4, Market.ON_DEMAND, 1.0)


SILENT = Webhook(None, BearerToken(), lambda: Cluster((POOL,), (TINY,)), lambda: 0.0)  # type: ignore[arg-type]


class Sent:
    """An outbox that only counts its records."""

    sent = 0
    dropped = 0

    def put(self, record: Any) -> None:
        self.sent += 1

    def apply(self, record: Any) -> None:
        raise AssertionError("nothing may be changed in mode recommend")


class Solver:
    """A solver that answers at once; the next observation contains the answer."""

    killed = 0

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._answers: tuple[PlanAnswer, ...] = ()

    def ask(self, request: PlanRequest, cluster: Cluster) -> None:
        self._answers += (plan_here(request, cluster),)

    def take(self) -> tuple[PlanAnswer, ...]:
        found, self._answers = self._answers, ()
        return found


@dataclass
class Made:
    """A controller, and the alerts that its webhook accepted. now_s: its monotonic clock."""

    loop: Loop
    url: str
    metrics: Metrics
    alerts: list[Alert]
    cluster: Cluster
    broken: bool = False
    now_s: float = 0.0
    leads: bool = True
    token: int = 3

    def run(self, first: int, last: int) -> None:
        for second in range(first, last + 1):
            self.loop.tick(NOW_MS + second * 1000)


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Made]:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    latest, sent = ControlState(), Sent()
    cluster = Cluster((POOL,), (TINY,))
    loop = Loop(
        restore(cluster, {}, {}, {}, (), NOW_MS, leader_token=3),
        lambda: held.cluster,
        TelemetryWindows(),
        latest,
        Ports(sent, sent, Solver()),  # type: ignore[arg-type]
        Clock(TimeBase(1.0, NOW_MS, 0), mono_ns=lambda: int(held.now_s * 1e9)),
        leads=lambda: True,
    )
    held = Made(loop, "", None, [], cluster)  # type: ignore[arg-type]

    async def publish(alert: Alert) -> None:
        if held.broken:
            raise ConnectionError("broker away")
        held.alerts.append(alert)

    identity = Identity("ctl-1", "b:1", "shoal.", True)
    facts = Facts(identity, loop, lambda: (held.leads, held.token, "ctl-1"))
    webhook = Webhook(publish, BearerToken(token), lambda: held.cluster, lambda: held.now_s)
    held.metrics = Metrics(facts, lambda: 0, lambda: webhook.counts, lambda: {"telemetry": 7})
    loop.watchers = (facts.tick, held.metrics.tick)
    server = HealthServer("127.0.0.1:0", facts, held.metrics, webhook, lambda: True)
    await server.start()
    held.url = server.url
    yield held
    await server.close()


async def get(made: Made, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(made.url + path) as answer:
        return answer.status, await answer.text()


async def post(made: Made, body: bytes, token: str = TOKEN, **more: str) -> int:
    headers = {"Authorization": f"Bearer {token}", **more}
    async with (
        aiohttp.ClientSession() as session,
        session.post(made.url + "/alerts", data=body, headers=headers) as answer,
    ):
        return answer.status


def payload(*fingerprints: str, state: str = "firing") -> bytes:
    return json.dumps(
        {
            "version": "4",
            "alerts": [
                {
                    "status": state,
                    "labels": {"alertname": "Late", "model": "tiny, other"},
                    "startsAt": "2023-11-14T22:13:20.123Z",
                    "fingerprint": fingerprint,
                    "generatorURL": "ignored",
                }
                for fingerprint in fingerprints
            ],
        }
    ).encode()


async def test_every_sample_has_a_documented_name_and_labels(made: Made) -> None:
    made.loop.latest.take(Price(POOL.id, 1.5, NOW_MS), 0)
    made.loop.latest.undeclared["status"] += 1
    made.run(1, 5)
    _, text = await get(made, "/metrics")
    seen = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            for suffix in ("_bucket", "_count", "_sum"):
                if name.removesuffix(suffix) in BY_NAME:
                    name = name.removesuffix(suffix)
            assert set(sample.labels) - {"le"} == set(BY_NAME[name].labels)
            seen.add(name)
    quiet = {"shoal_alerts_total", "shoal_telemetry_age_seconds", "shoal_slo_attained_ratio"}
    quiet |= {"shoal_demand_requests_per_second", "shoal_refused_records_total"}
    quiet.add("shoal_adapter_requests_per_second")  # no model has adapters
    assert seen >= set(BY_NAME) - quiet


def test_the_documentation_lists_exactly_the_metrics() -> None:
    text = Path("docs/reference/metrics.md").read_text()
    for metric in METRICS:
        labels = ", ".join(metric.labels) or "-"
        assert f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |" in text


async def desired(made: Made) -> list[float]:
    _, text = await get(made, "/metrics")
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "shoal_desired_replicas"
    ]


async def test_desired_replicas_are_absent_before_the_first_plan_and_kept_during_a_pause(
    made: Made,
) -> None:
    """A missing value must not count as 0."""
    made.run(1, 1)
    assert await desired(made) == []
    made.run(2, 5)
    (before,) = await desired(made)
    assert before >= 1.0
    made.loop.latest.take(Control("tiny", "pause", True, "ann", "why", NOW_MS), 0)
    made.run(6, 8)
    assert await desired(made) == [before]


async def test_a_controller_that_stopped_leading_shows_no_fleet(made: Made) -> None:
    """Its last counts would mix with those of the present leader."""
    made.loop.latest.take(Price(POOL.id, 1.5, NOW_MS), 0)
    made.run(1, 5)
    assert len(await desired(made)) == 1
    made.leads = False
    _, text = await get(made, "/metrics")
    assert "shoal_leader 0" in text and "shoal_ticks_total 5" in text
    of_models = ("shoal_desired", "shoal_held", "shoal_cost", "shoal_supply_age", "shoal_combos")
    assert not [line for line in text.splitlines() if line.startswith(of_models) or "tiny" in line]
    assert (await get(made, "/v1/explain/tiny"))[0] == 404
    facts = json.loads((await get(made, "/v1/status"))[1])
    assert (facts["leads"], facts["models"], facts["usd_per_h"]) == (False, [], None)


async def test_a_withdrawn_model_has_a_count_of_zero(made: Made) -> None:
    """If the series disappeared, the external scaler would keep the old count."""
    made.run(1, 5)
    assert min(await desired(made)) >= 1.0
    made.cluster = Cluster((POOL,), (dataclasses.replace(TINY, model="other"),))
    made.run(6, 6)
    assert await desired(made) == [0.0]


@pytest.mark.parametrize("held", ["tiny/pause", "*/release", "tiny/undeclared"])
async def test_an_undeclared_model_that_keeps_running_keeps_its_count(
    made: Made, held: str
) -> None:
    """The external scaler must not remove its instances."""
    made.run(1, 5)
    before, tell = await desired(made), made.loop.watchers[0]

    def say_held(done: TickResult) -> None:
        tell(
            dataclasses.replace(
                done,
                after=dataclasses.replace(
                    done.after, active_controls={held: Reason(ReasonCode.RELEASED)}
                ),
            )
        )

    made.loop.watchers = (say_held,)
    made.cluster = Cluster((POOL,), (dataclasses.replace(TINY, model="other"),))
    made.run(6, 6)
    assert await desired(made) == before


async def test_counts_of_an_earlier_term_are_dropped(made: Made) -> None:
    """Another leader planned in the meantime. A paused model keeps the count of that leader."""
    made.run(1, 5)
    assert len(await desired(made)) == 1
    made.token = 9
    made.loop.begin(restore(made.cluster, {}, {}, {}, (), NOW_MS, leader_token=9))
    made.loop.latest.take(Control("tiny", "pause", True, "ann", "why", NOW_MS), 0)
    made.run(6, 8)
    assert await desired(made) == []


async def test_a_controller_that_leads_again_shows_no_counts_of_its_earlier_term(
    made: Made,
) -> None:
    """Other controllers have led in the meantime. Their last counts stay valid until the first
    tick.
    """
    made.run(1, 5)
    assert len(await desired(made)) == 1
    made.now_s = made.loop.seated_s = 4 * 3600.0
    made.token = 9
    made.now_s += 2.0
    _, text = await get(made, "/metrics")
    assert "shoal_leader 1" in text and "shoal_tick_age_seconds 2.0" in text
    assert "tiny" not in text
    assert (await get(made, "/healthz"))[0] == 200


async def test_a_leader_without_decisions_is_not_healthy(made: Made) -> None:
    made.run(1, 1)
    assert (await get(made, "/healthz"))[0] == 200
    made.now_s = 11.0
    code, words = await get(made, "/healthz")
    assert code == 503 and words == "no decision for 11 s\n"
    assert (await get(made, "/readyz"))[0] == 503


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


async def test_alerts_are_published_once_with_their_models(made: Made) -> None:
    assert await post(made, payload("a", "b")) == 200
    assert await post(made, payload("a", "b")) == 200
    assert await post(made, payload("a", state="resolved")) == 200
    assert [(a.fingerprint, a.state) for a in made.alerts] == [
        ("a", "firing"),
        ("b", "firing"),
        ("a", "resolved"),
    ]
    assert made.alerts[0].models == ("tiny",)
    assert made.alerts[0].starts_ms == 1_700_000_000_123


def naming(label: str, model: str) -> bytes:
    return payload("a").replace(b'"model": "tiny, other"', f'"{label}": "{model}"'.encode())


async def post_alert(made: Made, body: bytes) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(made.url + "/alerts", data=body, headers=headers) as answer,
    ):
        return answer.status, (await answer.json())["said"]


@pytest.mark.parametrize("label", ["model", "model_name"])
async def test_an_alert_may_name_a_model_by_its_hugging_face_name(made: Made, label: str) -> None:
    """vLLM labels its series with this name unless it has a served model name."""
    status, words = await post_alert(made, naming(label, TINY.architecture.name))
    assert (status, words) == (200, "1 new of 1")
    assert [alert.models for alert in made.alerts] == [("tiny",)]


async def test_an_alert_may_name_a_model_as_vllm_serves_it(made: Made) -> None:
    """Alerts on vLLM's series carry the declared name in `model_name`."""
    made.cluster = Cluster((POOL,), (dataclasses.replace(TINY, served_as=("acme/tiny",)),))
    status, words = await post_alert(made, naming("model_name", "acme/tiny"))
    assert (status, words) == (200, "1 new of 1")
    assert [alert.models for alert in made.alerts] == [("tiny",)]


async def test_an_alert_for_a_shared_source_counts_for_every_model_with_it(made: Made) -> None:
    made.cluster = Cluster((POOL,), (TINY, dataclasses.replace(TINY, model="small")))
    await post_alert(made, naming("model", TINY.architecture.name))
    assert [alert.models for alert in made.alerts] == [("tiny", "small")]


async def test_an_alert_for_an_undeclared_model_is_named_and_counted(made: Made) -> None:
    status, words = await post_alert(made, naming("model", "ghost"))
    assert (status, words) == (200, "0 new of 1, no declared model: ghost")
    assert made.alerts == []
    assert 'shoal_alerts_total{result="unknown_model"} 1.0' in (await get(made, "/metrics"))[1]
    made.cluster = Cluster((POOL,), (TINY, dataclasses.replace(TINY, model="ghost")))
    assert await post_alert(made, naming("model", "ghost")) == (200, "1 new of 1")


async def test_an_alert_may_have_any_name_and_no_model(made: Made) -> None:
    """Alert names may contain spaces. A label without a value names no model."""
    text = payload("a").replace(b"Late", b"GPU too hot").replace(b'"tiny, other"', b"null")
    assert await post(made, text) == 200
    assert [(a.name, a.models) for a in made.alerts] == [("GPU too hot", ())]


async def test_an_unreadable_alert_does_not_affect_the_others(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    assert await post(made, payload("a", "bad name", "b")) == 200
    assert [a.fingerprint for a in made.alerts] == ["a", "b"]
    _, text = await get(made, "/metrics")
    assert 'shoal_alerts_total{result="refused"} 1.0' in text
    assert "alerts[1].fingerprint: 'bad name' is not allowed" in caplog.text


async def test_a_body_that_cannot_be_decompressed_is_refused_without_a_traceback(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client can send such a body, even without a token."""
    for encoding in ("gzip", "br", "zstd"):
        assert await post(made, b"not that", **{"Content-Encoding": encoding}) == 400
    assert await post(made, b"no gzip", token="wrong", **{"Content-Encoding": "gzip"}) == 401
    assert caplog.text == ""
    assert await post(made, payload("a")) == 200


async def test_alerts_without_a_token_too_large_or_too_frequent_are_refused(made: Made) -> None:
    assert await post(made, payload("a"), token="wrong") == 401
    assert await post(made, b"x" * (MOST_BYTES + 1)) == 413
    assert await post(made, b"{}") == 400
    assert await post(made, payload("bad name")) == 400
    codes = [await post(made, payload("a")) for _ in range(130)]
    assert codes.count(429) >= 10 and codes[0] == 200
    made.now_s = 61.0
    assert await post(made, payload("a")) == 200
    assert len(made.alerts) == 1


async def test_the_sender_is_asked_to_retry_while_the_broker_is_unreachable(made: Made) -> None:
    made.broken = True
    assert await post(made, payload("a")) == 503
    made.broken = False
    assert await post(made, payload("a")) == 200
    assert len(made.alerts) == 1


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
