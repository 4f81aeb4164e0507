"""Selects the model for a request to a service that routes to several models. It queries the
sources of a score in order, and falls back to another model if the selected model has no capacity.
The rules are in `autoscaler.serving.score_routing`.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.serving.request_router import Router
from autoscaler.serving.score_routing import (
    class_of,
    fallback_models,
    header_score,
    model_of,
    rule_score,
)
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.openai_format import ApiCall
from executors.gateway.scorer_client import ScorerClient
from topics.records import ScoreSplit


class ModelSelector:
    """Selects by the current routes."""

    def __init__(
        self, routers: Mapping[str, Router], metrics: GatewayMetrics, connect_s: float
    ) -> None:
        self._routers = routers
        self._metrics = metrics
        self.scorer = ScorerClient(connect_s)
        metrics.watch_scorer(self.scorer.failures)

    async def select(
        self, call: ApiCall, headers: Mapping[bytes, bytes], split: ScoreSplit
    ) -> tuple[str, int, bool]:
        """(model for `call`, class of its score, whether the model is a fallback instead of the one
        that the score selects). Waits for a score for at most the declared time."""
        score, origin = await self._score(call, headers, split)
        call.prompt_end = ""
        number = class_of(split, score)
        model = model_of(split, number)
        self._metrics.scored.labels(call.model, origin).inc()
        if not self._has_room(model):
            for other in fallback_models(split, model):
                if self._has_room(other):
                    self._metrics.fallbacks.labels(model, other).inc()
                    return other, number, True
        return model, number, False

    async def _score(
        self, call: ApiCall, headers: Mapping[bytes, bytes], split: ScoreSplit
    ) -> tuple[float | None, str]:
        source = split.source
        if source.header:
            text = headers.get(source.header.lower().encode(), b"")
            score = header_score(source, text.decode("latin-1")) if text else None
            if score is not None:
                return score, "header"
        if source.rules:
            score = rule_score(source.rules, call.prompt_end, call.prompt_tokens_estimate)
            if score is not None:
                return score, "rule"
        if source.url:
            score = await self.scorer.score(
                source, call.model, call.prompt_end, call.prompt_tokens_estimate
            )
            if score is not None:
                return score, "http"
        return None, "none"

    def _has_room(self, model: str) -> bool:
        router = self._routers.get(model)
        return router is not None and router.has_room()
