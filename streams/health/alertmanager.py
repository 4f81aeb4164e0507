"""Read Alertmanager's webhook payload into alert records.

Unknown fields are ignored. The models of an alert are the values of the label `model` (several
separated by commas), or of vLLM's own label `model_name` if `model` is absent.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from autoscaler.domain.cluster import Cluster
from topics.checks import InvalidValue
from topics.printable import printable
from topics.records import Alert

MOST_ALERTS = 1000


def alerts_of(body: bytes) -> tuple[list[Alert], list[InvalidValue]]:
    """The valid alerts of a payload, and the errors of the invalid ones. InvalidValue: the payload
    itself is invalid.
    """
    try:
        payload: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidValue("body", body[:40], f"JSON ({error})") from None
    listed = payload.get("alerts") if isinstance(payload, dict) else None
    if not isinstance(listed, list) or len(listed) > MOST_ALERTS:
        raise InvalidValue("alerts", type(listed).__name__, f"at most {MOST_ALERTS} alerts")
    alerts, refused = [], []
    for k, one in enumerate(listed):
        try:
            alerts.append(_alert(f"alerts[{k}]", one))
        except InvalidValue as error:
            refused.append(error)
    return alerts, refused


def known_names(cluster: Cluster) -> dict[str, tuple[str, ...]]:
    """Declared models by every name that an alert may use: a model's own name, its Hugging Face
    name (which several models may share), the names under which vLLM serves it, and the name of a
    service that routes over several models."""
    found = {route.name: tuple(route.models) for route in cluster.routes}
    for service in cluster.services:
        for name in {service.hugging_face_name, *service.served_as} - {""}:
            found[name] = (*found.get(name, ()), service.model)
    return found | {service.model: (service.model,) for service in cluster.services}


def declared_only(
    alert: Alert, names: Mapping[str, Sequence[str]]
) -> tuple[Alert | None, list[str]]:
    """(`alert` with only its declared models, the undeclared names).

    The alert names models by their own names; it is None if none of them is declared. names: see
    `known_names`.
    """
    unknown = [name for name in alert.models if name not in names]
    models = dict.fromkeys(model for name in alert.models for model in names.get(name, ()))
    if unknown and not models:
        return None, unknown
    return replace(alert, models=tuple(models)), unknown


def _alert(path: str, one: Any) -> Alert:
    if not isinstance(one, dict) or not isinstance(one.get("labels"), dict):
        raise InvalidValue(f"{path}.labels", one, "a JSON object")
    labels = one["labels"]
    models = _text(labels.get("model")) or _text(labels.get("model_name"))
    try:
        return Alert(
            fingerprint=_text(one.get("fingerprint")),
            name=printable(_text(labels.get("alertname"))),
            state=_text(one.get("status")),
            starts_ms=_ms(one.get("startsAt")),
            models=tuple(part for part in (m.strip() for m in models.split(",")) if part),
        )
    except InvalidValue as error:
        raise InvalidValue(f"{path}.{error.field}", error.value, error.allowed) from None


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _ms(text: object) -> int:
    try:
        found = dt.datetime.fromisoformat(str(text))
    except ValueError:
        raise InvalidValue("startsAt", text, "a time in RFC 3339") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=dt.UTC)
    return int(found.timestamp() * 1000)
