"""A controller in mode recommend behind its HTTP endpoint, and requests to it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.performance import catalog
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from streams.health.alert_webhook import Webhook
from streams.health.controller_facts import Facts
from streams.health.controller_metrics import Metrics
from streams.health.tokens import BearerToken
from streams.loop.tick_loop import Loop
from streams.solver.solver_client import plan_here
from topics.records import Alert

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
    facts: Facts = field(init=False)

    def run(self, first: int, last: int) -> None:
        for second in range(first, last + 1):
            self.loop.tick(NOW_MS + second * 1000)


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
