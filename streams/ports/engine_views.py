"""Query Prometheus for the engines' own metrics when an alert fires, before the alert takes effect.

The query has a time limit. The alert is always delivered: with the answer, or with the reason why
there is no answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from autoscaler.estimate.engine_view import EngineView
from streams.ports.promql import Ask, rate_of
from topics.records import Alert

log = logging.getLogger(__name__)

LIMIT_S = 1.0
_QUERY = 'sum(vllm:num_requests_{what}{{model_name="{model}"}})'

Deliver = Callable[[Alert, Mapping[str, EngineView]], None]


class EngineViews:
    """asks: one query function per Prometheus; their answers are summed. models: all declared
    models. deliver: receives the alert and the engines' metrics by model; called on the event loop.
    """

    def __init__(
        self,
        asks: Iterable[Ask],
        models: Callable[[], Iterable[str]],
        now_ms: Callable[[], int],
        deliver: Deliver,
    ) -> None:
        self._asks = tuple(asks)
        self._models = models
        self._now_ms = now_ms
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, alert: Alert) -> None:
        """Deliver `alert`; a firing alert is delivered after the query. Returns at once."""
        if alert.state != "firing" or not self._asks:
            self._deliver(alert, {})
            return
        task = asyncio.get_running_loop().create_task(self._ask_then_deliver(alert))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_then_deliver(self, alert: Alert) -> None:
        models = [model for model in self._models() if not alert.models or model in alert.models]
        views = {
            model: EngineView(at_ms=self._now_ms(), error="no answer in time") for model in models
        }
        try:
            async with asyncio.timeout(LIMIT_S):
                found = await asyncio.gather(*(self._view(model) for model in models))
                views = dict(zip(models, found, strict=True))
        except TimeoutError:
            log.warning("alert %s: Prometheus did not answer within %g s", alert.name, LIMIT_S)
        self._deliver(alert, views)

    async def _view(self, model: str) -> EngineView:
        running, waiting = await asyncio.gather(
            *(self._sum(_QUERY.format(what=what, model=model)) for what in ("running", "waiting"))
        )
        if running is None or waiting is None:
            return EngineView(at_ms=self._now_ms(), error="Prometheus knows none")
        return EngineView(running, waiting, self._now_ms())

    async def _sum(self, query: str) -> float | None:
        answers = await asyncio.gather(
            *(asyncio.to_thread(ask, query) for ask in self._asks), return_exceptions=True
        )
        known: list[float] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                log.warning("engines: Prometheus did not answer: %s", answer)
                continue
            vector: list[dict[str, Any]] = answer
            value = rate_of(vector)
            if value is not None:
                known.append(value)
        return sum(known) if known else None
