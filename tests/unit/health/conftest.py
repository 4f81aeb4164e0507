"""Fixture with a controller behind its HTTP endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster
from autoscaler.estimate.windows import TelemetryWindows
from streams.clock import Clock
from streams.health.alert_webhook import Webhook
from streams.health.controller_facts import Facts, Identity
from streams.health.controller_metrics import Metrics
from streams.health.status_server import HealthServer
from streams.health.tokens import BearerToken
from streams.loop.control_state import ControlState
from streams.loop.tick_loop import Loop, Ports
from tests.unit.health.served_controller import (
    NOW_MS,
    POOL,
    TINY,
    TOKEN,
    Made,
    Sent,
    Solver,
)
from topics.records import Alert
from topics.time_base import TimeBase


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
    facts = held.facts = Facts(identity, loop, lambda: (held.leads, held.token, "ctl-1"))
    webhook = Webhook(publish, BearerToken(token), lambda: held.cluster, lambda: held.now_s)
    held.metrics = Metrics(facts, lambda: 0, lambda: webhook.counts, lambda: {"telemetry": 7})
    loop.watchers = (facts.tick, held.metrics.tick)
    server = HealthServer("127.0.0.1:0", facts, held.metrics, webhook, lambda: True)
    await server.start()
    held.url = server.url
    yield held
    await server.close()
