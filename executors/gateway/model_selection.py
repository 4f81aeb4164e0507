"""Which model answers a request for a name that stands for several.

Owns the order in which sources of a score are asked, and what happens when the chosen model has no
room. The rules themselves are in `autoscaler.serving.score_routing`.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.serving.routing import Router
from autoscaler.serving.score_routing import (
    class_of,
    fallback_models,
    header_score,
    model_of,
    rule_score,
)
from executors.gateway.gateway_metrics import Metrics
from executors.gateway.openai_format import Call
from executors.gateway.scorer_client import Scorer
from topics.records import ScoreSplit


class Choosing:
    """Chooses by what routes say at that moment."""

    def __init__(self, routers: Mapping[str, Router], metrics: Metrics, connect_s: float) -> None:
        self._routers = routers
        self._metrics = metrics
        self.scorer = Scorer(connect_s)
        metrics.watch_scorer(self.scorer.failures)

    async def choose(
        self, call: Call, headers: Mapping[bytes, bytes], split: ScoreSplit
    ) -> tuple[str, int, bool]:
        """The model to answer `call`, the class of its score, and whether it is another model than
        the score says. Asks no longer than declared."""
        score, origin = await self._score(call, headers, split)
        call.text = ""
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
        self, call: Call, headers: Mapping[bytes, bytes], split: ScoreSplit
    ) -> tuple[float | None, str]:
        source = split.source
        if source.header:
            text = headers.get(source.header.lower().encode(), b"")
            score = header_score(source, text.decode("latin-1")) if text else None
            if score is not None:
                return score, "header"
        if source.rules:
            score = rule_score(source.rules, call.text, call.tokens_guess)
            if score is not None:
                return score, "rule"
        if source.url:
            score = await self.scorer.score(source, call.model, call.text, call.tokens_guess)
            if score is not None:
                return score, "http"
        return None, "none"

    def _has_room(self, model: str) -> bool:
        router = self._routers.get(model)
        return router is not None and router.has_room()
