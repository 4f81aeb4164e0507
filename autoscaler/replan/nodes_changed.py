"""A node was lost, one that is owned or ran something, or such a one is back."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.replan.trigger_inputs import News, Trigger

_NAMED = 3


def fire(news: News) -> Iterator[Trigger]:
    """Nodes lost and nodes back, since the last tick."""
    for nodes, words in (
        (news.lost - news.state.lost_nodes, "lost"),
        (news.state.lost_nodes - news.lost, "back"),
    ):
        if nodes:
            named = sorted(nodes)
            rest = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            yield Trigger(f"node {words}", (), f"{', '.join(named[:_NAMED])}{rest} {words}")
