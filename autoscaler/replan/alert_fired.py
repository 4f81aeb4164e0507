"""An alert fires. A resolved one triggers nothing: a dead exporter resolves alerts too."""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.replan.trigger_inputs import News, Trigger

_NAMED = 3


def fire(news: News) -> Iterator[Trigger]:
    """One trigger per firing alert, for the models it names."""
    known = {service.model for service in news.cluster.services}
    for alert in news.alerts:
        if alert.state != "firing":
            continue
        scope = tuple(model for model in alert.models if model in known)
        if scope or not alert.models:
            views = [f"{m}: {news.engines[m].words()}" for m in scope if m in news.engines]
            said = f" ({'; '.join(views[:_NAMED])})" if views else ""
            yield Trigger("alert", scope, f"alert {alert.name}{said}")
