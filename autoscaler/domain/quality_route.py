"""A service that routes to several models by the difficulty score of each request.

Holds the score classes, the share of requests in each class, and the quality of each model's
answers in each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from autoscaler.domain.validation import InvalidValue, finite, whole
from topics.scoring import MOST_EDGES, ScoreSource, ScoreSplit
from topics.telemetry import UNCLASSED

Cuts = tuple[int, ...]
"""Boundaries between models, as numbers of score classes: model i answers the classes from cuts[i -
1] until before cuts[i]."""

STEPS = 40
"""Default number of thresholds between two models."""
_ANYWHERE = ScoreSource()


@dataclass(frozen=True, slots=True)
class ScoreMix:
    """Distribution of requests over score classes. shares: share of all requests, by class.
    unscored: share of requests without a score. All shares add up to 1. requests: number of
    observed requests, 0 for the declared sample.
    """

    shares: tuple[float, ...]
    unscored: float = 0.0
    requests: int = 0


@dataclass(frozen=True, slots=True)
class QualityRoute:
    """Models in order of the difficulty of the requests that they answer, with a sample of
    requests.

    edges: scores between classes, rising. shares: share of the sampled requests, per class.
    quality: per class, each model's mean quality of answers, in the user's unit. at_least: required
    mean quality of answers, in that unit. req_per_s: rate of this service, in addition to the
    direct requests of its models. sampled: requests in the sample. unscored, fallback, source: as
    in `ScoreSplit`. traffic_share: weight of the service in a replayed trace.
    """

    name: str
    models: tuple[str, ...]
    edges: tuple[float, ...]
    shares: tuple[float, ...]
    quality: tuple[tuple[float, ...], ...]
    at_least: float
    req_per_s: float
    sampled: int
    unscored: str = ""
    fallback: bool = False
    source: ScoreSource = _ANYWHERE
    traffic_share: float = 1.0

    def __post_init__(self) -> None:
        who = f"model {self.name}"
        if len(self.models) < 2 or len(set(self.models)) < len(self.models):
            raise InvalidValue(f"{who}: models", list(self.models), "two or more different models")
        if self.unscored and self.unscored not in self.models:
            raise InvalidValue(f"{who}: unscored", self.unscored, " or ".join(self.models))
        classes = len(self.edges) + 1
        if len(self.shares) != classes or len(self.quality) != classes:
            raise InvalidValue(f"{who}: classes", len(self.shares), "one more than edges")
        finite(f"{who}: at_least", self.at_least)
        finite(f"{who}: req_per_s", self.req_per_s, 1e-9, 1e9)
        finite(f"{who}: share", self.traffic_share, 0.0, 1e6)

    @classmethod
    def from_sample(
        cls,
        name: str,
        models: tuple[str, ...],
        scores: Sequence[float],
        quality: Sequence[Sequence[float]],
        at_least: float,
        req_per_s: float,
        steps: int = STEPS,
        source: ScoreSource = _ANYWHERE,
        **rest: object,
    ) -> QualityRoute:
        """Build the route from sampled requests: scores (n,) and quality (n, models).

        The sample is divided into `steps` classes of nearly equal size; requests with equal scores
        are in one class. The range of accepted scores extends beyond the sample's on both sides, by
        the width of the sample's range. Raises InvalidValue for a wrong shape or values that are
        not finite.
        """
        who = f"model {name}"
        whole(f"{who}: quality.steps", steps, 1, MOST_EDGES)
        found, answers = np.asarray(scores, np.float64), np.asarray(quality, np.float64)
        if not len(found) or answers.shape != (len(found), len(models)):
            raise InvalidValue(f"{who}: scores", answers.shape, "a quality per model and row")
        for what, values in (("score", found), ("quality", answers)):
            if not np.all(np.isfinite(values)) or np.abs(values).max() > 1e8:
                raise InvalidValue(f"{who}: {what}", "not finite", "finite numbers up to 1e8")
        ordered = np.sort(found)
        at = {round(len(found) * k / steps) for k in range(1, steps)} - {0, len(found)}
        # An edge at the lowest score would separate nothing.
        edges = np.array(sorted({float(ordered[i]) for i in at} - {float(ordered[0])}))
        classes = np.searchsorted(edges, found, side="right")
        counts = np.bincount(classes, minlength=len(edges) + 1)
        sums = np.zeros((len(edges) + 1, len(models)))
        np.add.at(sums, classes, answers)
        low, high = float(ordered[0]), float(ordered[-1])
        reach = (high - low) or max(1.0, abs(high))
        bounded = ScoreSource(
            source.header, source.rules, source.url, source.limit_ms, low - reach, high + reach
        )
        return cls(
            name,
            models,
            tuple(edges.tolist()),
            tuple((counts / len(found)).tolist()),
            tuple(map(tuple, (sums / counts[:, None]).tolist())),
            at_least,
            req_per_s,
            len(found),
            source=bounded,
            **rest,  # type: ignore[arg-type]
        )

    @property
    def unscored_model(self) -> str:
        """The model that answers requests without a score: the declared one, else the last
        model."""
        return self.unscored or self.models[-1]

    @property
    def sample(self) -> ScoreMix:
        """The mix of the declared sample, in which every request has a score."""
        return ScoreMix(self.shares)

    def mix(self, counts: Mapping[int, int]) -> ScoreMix:
        """The mix of observed requests, from their counts by class. Classes beyond the last one
        count as the last."""
        found = [0] * len(self.shares)
        unscored = 0
        for number, count in counts.items():
            if number == UNCLASSED:
                unscored += count
            else:
                found[min(max(0, number), len(found) - 1)] += count
        total = sum(found) + unscored
        if not total:
            return self.sample
        return ScoreMix(tuple(n / total for n in found), unscored / total, total)

    def fractions(self, cuts: Cuts, mix: ScoreMix) -> tuple[float, ...]:
        """Each model's share of the requests in `mix`, if `cuts` divide them."""
        upto = [0.0, *accumulate(mix.shares)]
        ends = (0, *cuts, len(self.shares))
        most = len(self.shares)
        parts = [upto[min(ends[i + 1], most)] - upto[min(ends[i], most)] for i in range(self._n)]
        parts[self.models.index(self.unscored_model)] += mix.unscored
        return tuple(
            round(part, 12) for part in parts
        )  # rounded, so that all shares together give exactly 1

    def mean_quality(self, cuts: Cuts, mix: ScoreMix) -> float:
        """Mean quality of all answers. A request without a score counts as an average request of
        the sample."""
        ends = (0, *cuts, len(self.shares))
        found = sum(
            mix.shares[k] * self.quality[k][i]
            for i in range(self._n)
            for k in range(ends[i], min(ends[i + 1], len(self.shares)))
        )
        default = self.models.index(self.unscored_model)
        usual = sum(s * q[default] for s, q in zip(self.shares, self.quality, strict=True))
        return found + mix.unscored * usual

    def thresholds(self, cuts: Cuts) -> tuple[float, ...]:
        """`cuts` converted to scores. A request goes to the first model whose threshold is above
        the request's score."""
        ends = (float("-inf"), *self.edges, float("inf"))
        return tuple(ends[cut] for cut in cuts)

    def split(self, cuts: Cuts, mix: ScoreMix) -> ScoreSplit:
        """The score split that gateways apply."""
        return ScoreSplit(
            self.models,
            self.edges,
            cuts,
            self.unscored_model,
            self.fallback,
            self.source,
            tuple(round(part, 4) for part in self.fractions(cuts, mix)),
        )

    @property
    def _n(self) -> int:
        return len(self.models)
