"""Engine metrics for a firing alert, from Prometheus.

The query runs before the alert takes effect and has a time limit. The alert is always delivered,
with the answer or with the reason for a missing answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autoscaler.estimate.engine_view import EngineView
from streams.ports.metric_servers import HELD, Answer, Ask
from streams.ports.vllm_queries import VLLM_SOURCE, MetricSource, held_query
from topics.records import Alert

log = logging.getLogger(__name__)

LIMIT_S = 1.0

Deliver = Callable[[Alert, Mapping[str, EngineView]], None]


class EngineViews:
    """Queries the load of engines when an alert arrives. asks: one query function per Prometheus;
    their answers are summed. names: names under which engines serve each declared model. deliver:
    receives the alert and the engines' metrics by model; called on the event loop. sources: the
    metrics of each model."""

    def __init__(
        self,
        asks: Iterable[Ask],
        names: Callable[[], Mapping[str, Sequence[str]]],
        now_ms: Callable[[], int],
        deliver: Deliver,
        sources: Callable[[], Mapping[str, MetricSource]] = dict,
    ) -> None:
        self._asks = tuple(asks)
        self._names = names
        self._now_ms = now_ms
        self._deliver = deliver
        self._sources = sources
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, alert: Alert) -> None:
        """Deliver `alert`. A firing alert is delivered after the query. Returns at once."""
        if alert.state != "firing" or not self._asks:
            self._deliver(alert, {})
            return
        task = asyncio.get_running_loop().create_task(self._ask_then_deliver(alert))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_then_deliver(self, alert: Alert) -> None:
        names = {
            model: served
            for model, served in self._names().items()
            if not alert.models or model in alert.models
        }
        views = {
            model: EngineView(at_ms=self._now_ms(), error="no answer in time") for model in names
        }
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await asyncio.gather(*(self._view(*one) for one in names.items()))
                views = dict(zip(names, found, strict=True))
        except TimeoutError:
            log.warning("alert %s: Prometheus did not answer within %g s", alert.name, LIMIT_S)
        self._deliver(alert, views)

    async def _view(self, model: str, names: Sequence[str]) -> EngineView:
        source = self._sources().get(model, VLLM_SOURCE)
        running, waiting = await asyncio.gather(
            *(
                self._sum([held_query(name, is_waiting, source) for name in names])
                for is_waiting in (False, True)
            )
        )
        if running is None or waiting is None:
            return EngineView(at_ms=self._now_ms(), error="Prometheus knows none")
        return EngineView(running, waiting, self._now_ms())

    async def _sum(self, queries: Sequence[str]) -> float | None:
        answers = await asyncio.gather(
            *(asyncio.to_thread(ask, query) for ask in self._asks for query in queries),
            return_exceptions=True,
        )
        known: list[float] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                log.warning("engines: Prometheus did not answer: %s", answer)
                continue
            vector: list[dict[str, Any]] = answer
            try:
                value = Answer(vector).total(HELD)
            except (LookupError, TypeError, ValueError):
                continue
            if value is not None:
                known.append(value)
        return sum(known) if known else None
