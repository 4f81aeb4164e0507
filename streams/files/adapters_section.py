"""Read `adapters` of a model: its LoRA adapters, by the names that clients use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from autoscaler.domain.cluster import Service
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.adapter_memory import with_adapters
from streams.files import units
from streams.files.keys import Either, Group, Key, Named
from streams.files.units import Parser
from streams.files.yaml_tree import ConfigError, Section
from topics.lora_adapters import DEFAULT_RANK, Adapter, check_adapters, in_batch, rank_limit

_PATTERN = re.compile(r"(/|~/).*|[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*\Z", re.ASCII | re.DOTALL)


def _weights(value: object) -> str:
    text = units.text(value)
    if not _PATTERN.match(text):
        raise InvalidValue("", text, "an absolute path, or a repository such as org/name")
    return text


WEIGHTS = Key(
    "weights",
    Parser(_weights, units.text.form, units.text.schema),
    "Absolute path on the nodes, or Hugging Face repository.",
)
RANK = Key("rank", units.count(1, 512), "Rank of its matrices.", str(DEFAULT_RANK))
_ADAPTER = Group("One LoRA adapter.", (WEIGHTS, RANK))
ADAPTERS = Named(
    "LoRA adapters by the name under which clients ask for them.",
    Either("Its weights, or weights and rank.", {"": WEIGHTS.parser}, otherwise=_ADAPTER),
)


def read_adapters(section: Section | None) -> tuple[Adapter, ...]:
    """The adapters that `section` declares: `NAME: WEIGHTS`, or `NAME: {weights, rank}`."""
    if section is None:
        return ()
    found = []
    for name in section:
        weights, rank = "", DEFAULT_RANK
        if section.is_mapping(name):
            own = section.section(name, required=True)
            assert own is not None  # noqa: S101  required
            weights, rank = WEIGHTS.take(own), RANK.take(own)
            _ADAPTER.finish(own)
        else:
            weights = section.take(name, WEIGHTS.parser)
        try:
            found.append(Adapter(name, weights, rank))
        except InvalidValue as error:
            raise section.error(name, str(error)) from None
    try:
        check_adapters(found)
    except InvalidValue as error:
        raise ConfigError(section.file, section.line, section.path, str(error)) from None
    return tuple(found)


def memory_of_adapters(
    model: Section, spec: ModelSpec, adapters: Sequence[Adapter], args: Sequence[str]
) -> ModelSpec:
    """`spec` with the memory of `adapters` in an engine with `args`. ConfigError: the model's
    adapters cannot be served."""
    if not adapters:
        return spec
    try:
        return with_adapters(spec, in_batch(args, len(adapters)), rank_limit(adapters))
    except InvalidValue as error:
        raise model.error("adapters", str(error)) from None


def refuse_shared_names(models: Section, services: Iterable[Service]) -> None:
    """ConfigError if an adapter has the name of a model or of another model's adapter.

    A request for this name would be ambiguous.
    """
    services = tuple(services)
    owner = dict.fromkeys(models, "a model")
    owner |= {one.hugging_face_name: "a model" for one in services if one.hugging_face_name}
    for service in services:
        for adapter in service.adapters:
            if adapter.name in owner:
                where = models.section(service.model)
                assert where is not None  # noqa: S101  the service was read from it
                problem = f"{adapter.name} is also the name of {owner[adapter.name]}"
                raise where.error("adapters", problem)
            owner[adapter.name] = f"an adapter of {service.model}"
