"""Names under which vLLM serves a model: the values of `model_name` in its metrics.

`served_as` of a model declares them. Without it they are the model's own name and the Hugging Face
name of its source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from autoscaler.domain.cluster import Service
from autoscaler.domain.validation import InvalidValue
from streams.files import units
from streams.files.units import Parser
from streams.files.yaml_tree import Section

_ALLOWED = "one name or a list of names, each once and of at most 200 printable characters"


def _names(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    try:
        found = tuple(units.text(name) for name in names)
    except InvalidValue:
        raise InvalidValue("", value, _ALLOWED) from None
    if not found or len(set(found)) < len(found) or not all(map(_fits, found)):
        raise InvalidValue("", value, _ALLOWED)
    return found


def _fits(name: str) -> bool:
    return len(name) <= 200 and name.isprintable()


_NAME = {"type": "string", "minLength": 1, "maxLength": 200}
served_as = Parser(
    _names,
    "text, or list of text",
    {"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}]},
)
"""One name or a list of names."""


def served_names(services: Iterable[Service]) -> dict[str, tuple[str, ...]]:
    """Names to ask Prometheus for, by model.

    A name belongs to one model: to the model that declares it, else to the model with that name,
    else to the only model with that source. So no server counts twice. A model may end up without a
    name. Models with different `metric_labels` have different servers, so they may share names.
    """
    services = tuple(services)
    found: dict[str, tuple[str, ...]] = {}
    for labels in dict.fromkeys(service.metric_labels for service in services):
        found |= _names_of([one for one in services if one.metric_labels == labels])
    return {service.model: found[service.model] for service in services}


def _names_of(services: Sequence[Service]) -> dict[str, tuple[str, ...]]:
    """`served_names` of models with the same labels."""
    sources = Counter(s.hugging_face_name for s in services if not s.served_as)
    owners: dict[str, str] = {}
    for service in services:
        for name in service.served_as:
            owners.setdefault(name, service.model)
    for service in services:
        if not service.served_as:
            owners.setdefault(service.model, service.model)
    for service in services:
        source = service.hugging_face_name
        if source and not service.served_as and sources[source] == 1:
            owners.setdefault(source, service.model)
    found: dict[str, tuple[str, ...]] = {service.model: () for service in services}
    for name, model in owners.items():
        found[model] += (name,)
    return found


def unmanaged_names(services: Iterable[Service]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """By model that may have servers which Shoal did not start: the declared combo of such a
    server, and the model's `served_names`."""
    services = tuple(services)
    names = served_names(services)
    return {s.model: (s.unmanaged, names[s.model]) for s in services if s.unmanaged}


def refuse_shared(models: Section, services: Sequence[Service]) -> None:
    """ConfigError if two models declare the same name in `served_as`."""
    owners: dict[object, str] = {}
    for service in services:
        for name in service.served_as:
            owner = owners.setdefault((name, service.metric_labels), service.model)
            if owner != service.model:
                section = models.section(service.model, required=True)
                assert section is not None  # noqa: S101  required
                allowed = f"names that {owner} does not declare, or other metric_labels"
                problem = f"{name!r} is not allowed; allowed: {allowed}"
                raise section.error("served_as", problem)
