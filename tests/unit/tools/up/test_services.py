"""The live view of services that route among several models."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.quality_route import QualityRoute
from streams.tools.up.quality_view import service_parts
from streams.tools.up.run_state import Picture
from streams.tools.up.screen_layout import Facts, screen
from tests.unit.tools.up.status_records import NOW_MS, telemetry
from topics.records import Routes
from topics.scoring import ALL_REQUESTS, FALLBACK

ROUTE = QualityRoute.from_sample(
    "auto", ("mini", "chat"), [0.1, 0.3, 0.5, 0.7], [[90, 95], [80, 95], [60, 95], [40, 95]],
    80.0, 4.0, 4,
)  # fmt: skip
FACTS = Facts(("t",), "running", (), NOW_MS, 0, 0, 0, 0.0, None)


def picture_of(cluster: Cluster) -> Picture:
    return Picture(replace(cluster, routes=(ROUTE,)))


def test_a_service_shows_no_unknown_figure(cluster: Cluster) -> None:
    picture = picture_of(cluster)
    (row,) = picture.services(NOW_MS)
    assert service_parts(row) == ["auto: no thresholds yet"]
    picture.add(Routes("auto", 1, 1, NOW_MS, 0.0, 0.0, split=ROUTE.split((2,), ROUTE.sample)))
    (row,) = picture.services(NOW_MS)
    assert service_parts(row)[:2] == [
        "auto: mini - of 50% planned, chat - of 50% planned", "quality -, at least 80",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [60, 100])
def test_a_service_shows_shares_quality_and_fallbacks(cluster: Cluster, width: int) -> None:
    """Planned and served values are shown at every width."""
    picture = picture_of(cluster)
    picture.add(Routes("auto", 1, 1, NOW_MS, 0.0, 0.0, split=ROUTE.split((2,), ROUTE.sample)))
    sent = {ALL_REQUESTS: {"mini": 3, "chat": 1}, FALLBACK: {"mini": 1}}
    told = telemetry(model="auto", arrivals=4, sent=sent, classes={0: 1, 1: 1, 3: 2})
    picture.add(told)
    picture.add(told)  # a duplicate record
    (row,) = picture.services(NOW_MS)
    assert row.shares == (("mini", 0.75, 0.5), ("chat", 0.25, 0.5))
    assert row.fallbacks == 1
    assert row.quality == pytest.approx((90 + 80 + 95 + 95) / 4)
    assert not row.missed
    for height in (12, 24, None):
        lines = [line.plain for line in screen(picture, NOW_MS, FACTS, width, height)]
        assert all(len(line) <= width for line in lines)
        text = " | ".join(lines)
        assert "mini 75% of 50% planned" in text
        assert "1 fell back" in text
        assert "thresholds 0.5" in text
