"""Additions alone made the bill grow: what was bought piece by piece is looked at as a whole."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.triggers.news import News, Trigger


def fire(news: News) -> Iterator[Trigger]:
    """The bill grew by more than `policy.ratio` since the last full plan was asked for."""
    before, now = news.state.planned_bill_usd_per_h, news.bill_usd_per_h
    if now > (1.0 + news.cluster.policy.ratio) * before > 0.0:
        yield Trigger("bill", (), f"the fleet costs {now:.2f} USD/h (was {before:.2f})")
