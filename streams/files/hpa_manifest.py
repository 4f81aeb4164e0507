"""Read HorizontalPodAutoscalers (autoscaling/v2) and KEDA ScaledObjects from a YAML file.

The file may hold several documents, and lists as `kubectl get -o yaml` prints them. Only metrics
that a simulation knows can be read: running requests, waiting requests, and requests/s.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.policies.hpa_object import (
    DOWN,
    UP,
    Behavior,
    Form,
    HpaObject,
    Limit,
    Metric,
    Quantity,
    Select,
)
from streams.files.csv_rows import cause_of, text_of
from streams.files.user_errors import UserError, first_line
from topics import plainyaml

MODEL = "shoal.dev/model"
METRIC = "shoal.dev/metric"
"""Annotations: the model that an object scales, and what its metric counts."""
_KNOWN = (
    ("num_requests_running", Quantity.RUNNING),
    ("num_requests_waiting", Quantity.WAITING),
    ("request_success_total", Quantity.RATE),
    ("e2e_request_latency_seconds_count", Quantity.RATE),
    ("http_requests_total", Quantity.RATE),
)
"""Parts of the names of vLLM's metrics, and of the usual counters of requests."""
_SUFFIX = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)([mkMG]?)", re.ASCII)
_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class ScaledTarget:
    """The object of one workload. name: of the workload, or of the annotated model."""

    name: str
    declared: HpaObject


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the file with its path, for errors."""

    path: str
    value: Any

    def error(self, allowed: str) -> InvalidValue:
        return InvalidValue(self.path, "missing" if self.value is None else self.value, allowed)

    def __getitem__(self, key: str) -> _Value:
        if self.value is not None and not isinstance(self.value, Mapping):
            raise self.error("a mapping")
        return _Value(f"{self.path}.{key}", (self.value or {}).get(key))

    def items(self) -> list[_Value]:
        if self.value is None:
            return []
        if not isinstance(self.value, Sequence) or isinstance(self.value, str):
            raise self.error("a list")
        return [_Value(f"{self.path}[{k}]", one) for k, one in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.error("text")
        return self.value

    def whole(self, otherwise: int | None = None, least: int = 0) -> int:
        if self.value is None and otherwise is not None:
            return otherwise
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.error(f"a whole number from {least} to {_MOST}")
        if not least <= self.value <= _MOST:
            raise self.error(f"{least} to {_MOST}")
        return self.value

    def quantity(self) -> float:
        match = _QUANTITY.fullmatch(str(self.value)) if self.value is not None else None
        number = float(match[1]) * _SUFFIX[match[2]] if match else 0.0
        if not 0.0 < number < math.inf:
            raise self.error('a positive quantity, such as 5, "0.5" or "500m"')
        return number

    def word(self, words: Sequence[str], otherwise: str) -> str:
        found = otherwise if self.value is None else str(self.value)
        if found not in words:
            raise self.error(", ".join(words))
        return found


def read_objects(path: Path) -> tuple[ScaledTarget, ...]:
    """All objects in `path`. UserError: the file cannot be read. InvalidValue names the value."""
    try:
        documents = plainyaml.load_all(text_of(path))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {first_line(error)}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({cause_of(error)})") from None
    found = [
        _target(one) for document in documents for one in _objects(_Value(str(path), document))
    ]
    if not found:
        raise UserError(f"{path}: no HorizontalPodAutoscaler and no ScaledObject")
    return tuple(found)


def _objects(document: _Value) -> Iterator[_Value]:
    if document.value is None:
        return
    kind = document["kind"]
    if str(kind.value).endswith("List"):
        for one in document["items"].items():
            yield from _objects(one)
        return
    kind.word(("HorizontalPodAutoscaler", "ScaledObject", "List"), "missing")
    yield _Value(f"{document.path}: {document['metadata']['name'].text()}", document.value)


def _target(one: _Value) -> ScaledTarget:
    annotations, spec = one["metadata"]["annotations"], one["spec"]
    name = annotations[MODEL]
    target = name if name.value is not None else spec["scaleTargetRef"]["name"]
    read = _keda if one["kind"].value == "ScaledObject" else _hpa
    return ScaledTarget(target.text(), read(one, spec, annotations[METRIC]))


def _hpa(one: _Value, spec: _Value, declared: _Value) -> HpaObject:
    one["apiVersion"].word(("autoscaling/v2", "autoscaling/v2beta2"), "missing")
    metrics = tuple(_metric(metric, declared) for metric in spec["metrics"].items())
    if not metrics:
        raise spec["metrics"].error("one metric or more")
    least = spec["minReplicas"].whole(1)
    return _object(metrics, spec["behavior"], least, spec["maxReplicas"].whole(least=1))


def _metric(metric: _Value, declared: _Value) -> Metric:
    kind = metric["type"].word(("Pods", "Object", "External"), "missing")
    source = metric[kind.lower()]
    quantity = _counts(source["metric"]["name"], declared)
    target = source["target"]
    forms = ("AverageValue",) if kind == "Pods" else ("AverageValue", "Value")
    if target["type"].word(forms, "missing") == "Value":
        return Metric(quantity, Form.VALUE, target["value"].quantity())
    form = Form.PODS if kind == "Pods" else Form.AVERAGE
    return Metric(quantity, form, target["averageValue"].quantity())


def _keda(one: _Value, spec: _Value, declared: _Value) -> HpaObject:
    one["apiVersion"].word(("keda.sh/v1alpha1",), "missing")
    advanced = spec["advanced"]
    if advanced["scalingModifiers"].value:
        raise advanced["scalingModifiers"].error("no formula: a simulation cannot compute it")
    metrics = []
    for trigger in spec["triggers"].items():
        trigger["type"].word(("prometheus",), "missing")
        source = trigger["metadata"]
        form = trigger["metricType"].word(("AverageValue", "Value"), "AverageValue")
        metrics.append(
            Metric(
                _counts(source["query"], declared),
                Form.VALUE if form == "Value" else Form.AVERAGE,
                source["threshold"].quantity(),
            )
        )
    if not metrics:
        raise spec["triggers"].error("one trigger or more")
    # KEDA scales from 0 to 1 by itself; the simulation keeps one replica.
    least, most = spec["minReplicaCount"].whole(0), spec["maxReplicaCount"].whole(100, least=1)
    behavior = advanced["horizontalPodAutoscalerConfig"]["behavior"]
    return _object(tuple(metrics), behavior, least, most)


def _counts(source: _Value, declared: _Value) -> Quantity:
    """The quantity of a metric, by its annotation or by its name."""
    words = tuple(quantity.value for quantity in Quantity)
    if declared.value is not None:
        return Quantity(declared.word(words, ""))
    text = source.text()
    for part, quantity in _KNOWN:
        if part in text:
            return quantity
    known = ", ".join(part for part, _ in _KNOWN)
    raise source.error(f"one of {known}, or annotate {METRIC}: {', '.join(words)}")


def _object(metrics: tuple[Metric, ...], behavior: _Value, least: int, most: int) -> HpaObject:
    if least > most:
        allowed = f"at most the maximum {most}"
        raise InvalidValue(behavior.path.replace("behavior", "minReplicas"), least, allowed)
    up = _behavior(behavior["scaleUp"], UP)
    return HpaObject(metrics, up, _behavior(behavior["scaleDown"], DOWN), max(1, least), most)


def _behavior(declared: _Value, usual: Behavior) -> Behavior:
    limits = tuple(_limit(one) for one in declared["policies"].items()) or usual.limits
    tolerance = declared["tolerance"]
    return Behavior(
        limits,
        declared["stabilizationWindowSeconds"].whole(usual.stable_s),
        Select(declared["selectPolicy"].word(tuple(Select), Select.MAX)),
        usual.tolerance if tolerance.value is None else tolerance.quantity(),
    )


def _limit(declared: _Value) -> Limit:
    kind = declared["type"].word(("Pods", "Percent"), "missing")
    period_s = declared["periodSeconds"].whole(least=1)
    return Limit(declared["value"].whole(least=1), kind == "Percent", period_s)
