"""Splits of requests over models by score: quality, Pareto front, and the cheapest split that is
good enough.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from autoscaler.domain.quality_route import QualityRoute, ScoreMix
from autoscaler.domain.validation import InvalidValue
from autoscaler.modes.quality.answer_quality import (
    Split,
    cheapest_split,
    pareto_front,
    price_splits,
    splits,
)
from autoscaler.modes.quality.route_choice import choose_split
from autoscaler.planning.planner_messages import RouteTraffic
from topics.reason_codes import ReasonCode


def sample(seed: int = 0, models: int = 2, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.round(rng.random(n), 1), rng.random((n, models))  # scores with many ties


def route(
    seed: int = 0, models: int = 2, at_least: float = 0.0, steps: int = 12, **more: object
) -> QualityRoute:
    scores, quality = sample(seed, models)
    names = tuple(f"m{i}" for i in range(models))
    return QualityRoute.from_sample(
        "auto", names, scores.tolist(), quality.tolist(), at_least, 10.0, steps, **more
    )


def test_shares_and_quality_of_a_split_equal_those_of_the_routed_sample() -> None:
    """The test routes each request by its score and calculates shares and
    quality from the results.
    """
    for models in (2, 3):
        scores, quality = sample(4, models)
        for split in splits(route(4, models)):
            model = np.searchsorted(split.thresholds, scores, side="right")
            shares = np.bincount(model, minlength=models) / len(scores)
            assert shares == pytest.approx(split.fractions)
            mean = quality[np.arange(len(model)), model].mean()
            assert split.quality == pytest.approx(mean)


def test_splits_with_a_single_model_are_included() -> None:
    """They are the two ends of the front."""
    fractions = {split.fractions for split in splits(route(1))}
    assert {(1.0, 0.0), (0.0, 1.0)} <= fractions


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_exact_on_the_grid(seed: int) -> None:
    """No pair of thresholds is cheaper at equal quality, or better at equal cost."""
    r = route(seed, 3)
    scores, answers = sample(seed, 3)
    usd = (1.0, 2.5, 6.0)

    def price(split: Split) -> tuple[str, float, bool]:
        return "fleet", float(np.dot(usd, split.fractions)), False

    found = pareto_front(list(price_splits(splits(r), price)))
    for low, high in product([-np.inf, *r.edges, np.inf], repeat=2):
        if low > high:
            continue
        model = np.searchsorted((low, high), scores, side="right")
        cost = float(np.mean(np.array(usd)[model]))
        quality = float(answers[np.arange(len(model)), model].mean())
        assert any(o.usd_per_h <= cost + 1e-9 and o.split.quality >= quality - 1e-9 for o in found)
    costs = [o.usd_per_h for o in found]
    assert costs == sorted(costs)
    assert [o.split.quality for o in found] == sorted(o.split.quality for o in found)


def test_the_cheapest_split_has_the_quality_and_serves_its_load() -> None:
    """A cheaper split with too little capacity does not count."""
    r = route(2, at_least=0.0)
    cheap = {s.fractions: s for s in splits(r)}[(1.0, 0.0)]
    options = list(price_splits(splits(r), lambda s: ("fleet", 1.0 + s.fractions[1], s == cheap)))
    best = cheapest_split(r, options)
    assert best.split != cheap
    assert not best.underserved


def test_an_unreachable_quality_is_refused_with_the_best_possible_one() -> None:
    """No model reaches a quality of 2, because scores range from 0 to 1."""
    r = route(3, at_least=2.0)
    options = list(price_splits(splits(r), lambda s: ("fleet", 1.0, False)))
    with pytest.raises(InvalidValue, match="at most 0"):
        cheapest_split(r, options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"models": ("m0",)}, "per model|two or more"),
        ({"models": ("m0", "m0")}, "two or more"),
        ({"scores": [np.nan] * 60}, "finite"),
        ({"quality": np.zeros((60, 3)).tolist()}, "per model"),
        ({"req_per_s": 0.0}, "req_per_s"),
        ({"unscored": "m7"}, "unscored"),
        ({"steps": 0}, "quality.steps"),
    ],
)
def test_an_invalid_route_is_refused(change: dict[str, Any], said: str) -> None:
    """The error names the field."""
    scores, quality = sample()
    good: dict[str, Any] = {
        "name": "auto", "models": ("m0", "m1"), "scores": scores.tolist(),
        "quality": quality.tolist(), "at_least": 0.0, "req_per_s": 1.0,
    }  # fmt: skip
    with pytest.raises(InvalidValue, match=said):
        QualityRoute.from_sample(**(good | change))


def linear() -> QualityRoute:
    """A sample for two models. The small model is right only on easy requests."""
    scores = [(i + 0.5) / 100 for i in range(100)]
    quality = [[100.0 * (1.0 - s), 90.0] for s in scores]
    return QualityRoute.from_sample("auto", ("small", "large"), scores, quality, 80.0, 10.0, 20)


def price_of(split: Split, left: int) -> tuple[str, float, bool]:
    return "fleet", 10.0 + 20.0 * split.fractions[1], False


def test_requests_without_a_score_count_for_the_model_that_gets_them() -> None:
    """Their share is part of the model's load. The model's average quality applies to them."""
    r = linear()
    mix = r.mix({-1: 50, 0: 50})
    assert r.fractions((20,), mix) == pytest.approx((0.5, 0.5))
    assert r.mean_quality((20,), mix) == pytest.approx(0.5 * 97.5 + 0.5 * 90.0)


def test_thresholds_follow_the_measured_scores() -> None:
    """Requests are harder than those of the sample. Other thresholds keep the quality with a larger
    fleet.
    """
    r = linear()
    usual, _ = choose_split(r, RouteTraffic("auto", 10.0, r.sample), price_of)
    hard = r.mix({k: 1 + 9 * (k >= 10) for k in range(20)})
    harder, _ = choose_split(r, RouteTraffic("auto", 10.0, hard, usual.cuts), price_of)
    assert harder.cuts != usual.cuts
    assert harder.fractions[1] > usual.fractions[1]
    assert harder.quality >= 80.0
    assert usual.bound_by.quantities[0] == 80


def test_thresholds_stay_for_random_or_small_differences() -> None:
    """A few hundred requests are slightly harder by chance."""
    r = linear()
    first, _ = choose_split(r, RouteTraffic("auto", 10.0, r.sample), price_of)
    counts = dict.fromkeys(range(20), 10) | {10: 14}
    again, _ = choose_split(r, RouteTraffic("auto", 10.0, r.mix(counts), first.cuts), price_of)
    assert again.cuts == first.cuts
    many = dict.fromkeys(range(20), 10_000) | {10: 14_000}
    moved, _ = choose_split(r, RouteTraffic("auto", 10.0, r.mix(many), first.cuts), price_of)
    assert moved.cuts != first.cuts  # The same share of many more requests is significant.


def test_fixed_thresholds_change_only_if_they_must() -> None:
    """A lower cost does not change them. Too low a quality or an unserved load does."""
    r = linear()
    strict = (2,)  # Nearly all requests to the large model: good, but expensive.
    rested, _ = choose_split(
        r, RouteTraffic("auto", 10.0, r.sample, strict, recently_moved=True), price_of
    )
    free, _ = choose_split(r, RouteTraffic("auto", 10.0, r.sample, strict), price_of)
    assert rested.cuts == strict != free.cuts
    assert rested.bound_by.code is ReasonCode.QUALITY_COSTS
    hard = r.mix(dict.fromkeys(range(20), 10) | {19: 5000})
    worse, _ = choose_split(
        r, RouteTraffic("auto", 10.0, hard, (20,), recently_moved=True), price_of
    )
    assert worse.cuts != (20,)

    def short(split: Split, left: int) -> tuple[str, float, bool]:
        return "fleet", 10.0, split.fractions[1] > 0.8

    served, _ = choose_split(
        r, RouteTraffic("auto", 10.0, r.sample, strict, recently_moved=True), short
    )
    assert served.fractions[1] <= 0.8


def test_a_load_that_no_split_serves_is_stated_with_the_best_quality() -> None:
    """The answer has the best possible quality and the reason."""
    r = linear()
    found, _ = choose_split(
        r, RouteTraffic("auto", 10.0, r.sample), lambda *_: ("fleet", 1.0, True)
    )
    assert found.bound_by.code is ReasonCode.QUALITY_POOLS
    none = QualityRoute.from_sample("auto", ("a", "b"), [0.1, 0.9], [[1, 2], [1, 2]], 5.0, 1.0, 2)
    reach, _ = choose_split(none, RouteTraffic("auto", 1.0, ScoreMix(none.shares)), price_of)
    assert reach.fractions == (0.0, 1.0)
    assert reach.bound_by.code is ReasonCode.QUALITY_OUT_OF_REACH
