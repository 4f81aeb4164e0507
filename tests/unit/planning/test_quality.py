"""Splits of requests over models by score: their quality, their front, the cheapest good one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from autoscaler.domain.checks import InvalidValue
from autoscaler.planning.quality import QualityRoute, Split, cheapest, front, priced, splits


def route(seed: int = 0, models: int = 2, at_least: float = 0.0, n: int = 60) -> QualityRoute:
    rng = np.random.default_rng(seed)
    scores = np.round(rng.random(n), 1)  # many ties
    quality = rng.random((n, models))
    names = tuple(f"m{i}" for i in range(models))
    return QualityRoute("auto", names, scores, quality, at_least, 10.0)


def test_a_split_is_what_its_thresholds_do_to_the_sample() -> None:
    """Shares and quality are recomputed by sending each request by its score."""
    for models in (2, 3):
        r = route(4, models)
        for split in splits(r, 12):
            model = np.searchsorted(split.thresholds, r.scores, side="right")
            shares = np.bincount(model, minlength=models) / len(r.scores)
            assert shares == pytest.approx(split.fractions)
            mean = r.quality[np.arange(len(model)), model].mean()
            assert split.quality == pytest.approx(mean)


def test_everything_to_one_model_is_among_the_splits() -> None:
    """The ends of the front are the models alone."""
    fractions = {split.fractions for split in splits(route(1))}
    assert {(1.0, 0.0), (0.0, 1.0)} <= fractions


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_exact_on_the_grid(seed: int) -> None:
    """No pair of thresholds is cheaper at the same quality or better at the same cost."""
    r = route(seed, 3)
    usd = (1.0, 2.5, 6.0)

    def price(split: Split) -> tuple[str, float, bool]:
        return "fleet", float(np.dot(usd, split.fractions)), False

    options = list(priced(splits(r, 12), price))
    found = front(options)
    values = np.unique(r.scores)
    for low, high in product([*values, np.inf], repeat=2):
        if low > high:
            continue
        model = np.searchsorted((low, high), r.scores, side="right")
        if not any(o.split.thresholds == (low, high) for o in options):
            continue
        cost = float(np.mean(np.array(usd)[model]))
        quality = float(r.quality[np.arange(len(model)), model].mean())
        assert any(o.usd_per_h <= cost + 1e-9 and o.split.quality >= quality - 1e-9 for o in found)
    costs = [o.usd_per_h for o in found]
    assert costs == sorted(costs)
    assert [o.split.quality for o in found] == sorted(o.split.quality for o in found)


def test_the_cheapest_is_good_enough_and_serves_its_load() -> None:
    """A cheaper split that falls short of its load does not count."""
    r = route(2, at_least=0.0)
    cheap = {s.fractions: s for s in splits(r)}[(1.0, 0.0)]
    options = list(
        priced(splits(r), lambda s: ("fleet", 1.0 + s.fractions[1], s is not None and s == cheap))
    )
    best = cheapest(r, options)
    assert best.split != cheap
    assert not best.short


def test_a_quality_out_of_reach_says_what_can_be_had() -> None:
    """No model reaches 2 where answers are scored from 0 to 1."""
    r = route(3, at_least=2.0)
    options = list(priced(splits(r), lambda s: ("fleet", 1.0, False)))
    with pytest.raises(InvalidValue, match="at most 0"):
        cheapest(r, options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"models": ("m0",)}, "two or more"),
        ({"models": ("m0", "m0")}, "two or more"),
        ({"scores": np.array([np.nan] * 60)}, "finite"),
        ({"quality": np.zeros((60, 3))}, "per model"),
        ({"req_per_s": 0.0}, "req_per_s"),
    ],
)
def test_what_makes_no_route_is_refused(change: dict[str, object], said: str) -> None:
    """Named by field."""
    r = route()
    fields = {name: getattr(r, name) for name in QualityRoute.__slots__}
    with pytest.raises(InvalidValue, match=said):
        QualityRoute(**(fields | change))  # type: ignore[arg-type]
