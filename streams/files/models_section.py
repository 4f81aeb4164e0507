"""Read `models:` of `shoal.yaml`: the services that the fleet must serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autoscaler.domain.cluster import Mode, Pool, Service
from autoscaler.domain.schedule import Weekly
from autoscaler.domain.validation import InvalidValue
from streams.files import model_keys as common
from streams.files import units
from streams.files.adapters_section import ADAPTERS, memory_of_adapters, read_adapters
from streams.files.components_section import COMPONENTS_MODEL, is_graph, read_graph_service
from streams.files.defaults_section import DEFAULTS, MAX_LEN, Defaults, over
from streams.files.engines_section import EngineSpec
from streams.files.keys import Either, Group, Key, Named
from streams.files.model_source import architecture
from streams.files.name_rules import check_name
from streams.files.prometheus_section import LABELS, read_labels
from streams.files.quality_section import QUALITY_ROUTE, stands_for_models
from streams.files.rollout_section import ROLLOUT, read_rollout
from streams.files.served_names import served_as
from streams.files.unmanaged_section import UNMANAGED, read_unmanaged
from streams.files.workload_section import WORKLOAD, read_workload, refuse_longer
from streams.files.yaml_tree import ConfigError, Section

_WINDOWS = units.list_of(units.text, "[fri 16:00-24:00]")

SOURCE = Key(
    "source",
    units.text,
    "Hugging Face name, or the path of a config.json relative to this file.",
)
WEIGHTS = Key(
    "weights",
    units.text,
    "Path or repository that engines load. A change begins a rollout.",
    otherwise="`source`",
)
ENGINE = Key("engine", units.text, "Name under `engines`.", "default")
SURVIVE = Key(
    "survive",
    units.word("none", "one-node", "all-spot"),
    "After this loss the remaining capacity must still serve the full load.",
    "none",
)
DISAGGREGATE = Key(
    "disaggregate",
    units.flag,
    "Whether prefill and decode may be separate instances.",
    otherwise="`true`; `false` with `adapters`",
)
FREEZE = Key(
    "freeze",
    _WINDOWS,
    "Weekly windows in which nothing is removed or moved, such as fri 16:00-24:00.",
    otherwise="none",
)
DEMAND = Key(
    "demand",
    units.text,
    "PromQL for requests/s, or `vllm`, `sglang`, `tensorrt-llm`, `dynamo` or `llm-d` for the "
    "metrics of that engine or router, instead of gateway telemetry.",
    otherwise="gateway telemetry",
)
SERVED_AS = Key(
    "served_as",
    served_as,
    "Names under which vLLM serves the model: label `model_name` of its metrics.",
    otherwise="the model's name and the Hugging Face name of its source",
)
_LEAST = units.count(0, 100_000)
MODEL = Group(
    "One served model.",
    (
        SOURCE, WEIGHTS, ENGINE, common.MIN, common.MAX, common.REGIONS, SURVIVE, common.PRIORITY,
        common.MODE, DISAGGREGATE, FREEZE, common.ZERO_AFTER, DEMAND, SERVED_AS, common.SHARE,
        *DEFAULTS.keys,
    ),
    {
        "slo": common.SLO,
        "workload": WORKLOAD,
        "floors": Named("Least number of combos by weekly window.", _LEAST),
        "scale": Group(
            "External scalers. Shoal plans the counts and does not act.",
            (),
            {"keda": Named("Scale target by pool.", units.text)},
            required=("keda",),
        ),
        "adapters": ADAPTERS,
        "rollout": ROLLOUT,
        "unmanaged": UNMANAGED,
        "metric_labels": LABELS,
    },
    required=("slo",),
)  # fmt: skip
MODELS = Named(
    "Models by name.",
    Either(
        "A model, a model of components, or a route over several models.",
        {"components": COMPONENTS_MODEL, "models": QUALITY_ROUTE},
        otherwise=MODEL,
    ),
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Parts of the file that a model refers to or inherits. folder: folder of the file, for
    relative paths.
    """

    defaults: Defaults
    engines: Mapping[str, EngineSpec]
    pools: tuple[Pool, ...]
    mode: Mode
    folder: Path

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(sorted({pool.region for pool in self.pools}))


def read_models(section: Section, given: Surroundings) -> tuple[Service, ...]:
    """The services of `section`, without routes over several models. ConfigError names file, line
    and key."""
    services = []
    sections = dict(section.children())
    plain = [name for name, model in sections.items() if not is_graph(model)]
    if plain and len(plain) < len(sections):
        raise section.error(
            plain[0],
            "has no components; declare models with and without components in separate files",
        )
    for name, model in section.children():
        check_name(section, name)
        if not stands_for_models(model):
            services.append(read_model(name, model, given))
    if not services:
        raise ConfigError(section.file, section.line, section.path, "no model is declared")
    return tuple(services)


def read_model(name: str, model: Section, given: Surroundings) -> Service:
    """The service of one model. ConfigError for an invalid key or value."""
    try:
        if is_graph(model):
            regions = given.regions
            service = read_graph_service(name, model, given.defaults, regions, given.mode)
            COMPONENTS_MODEL.finish(model)
            return service
        service = _declared(name, model, given)
        external = read_unmanaged(model.section("unmanaged"), name, given.pools)
    except InvalidValue as error:
        key, _, more = error.field.removeprefix(f"model {name}: ").partition(": ")
        if key not in model:
            raise ConfigError(model.file, model.line, model.path, str(error)) from error
        where = f"{more}: " if more else ""
        problem = f"{where}{error.value!r} is not allowed; allowed: {error.allowed}"
        raise model.error(key, problem) from error
    MODEL.finish(model)
    return replace(service, unmanaged=external)


def _declared(name: str, model: Section, given: Surroundings) -> Service:
    source = model.take(SOURCE.name, lambda value: architecture(units.text(value), given.folder))
    engine = given.engines[
        model.take(ENGINE.name, units.word(*given.engines), ENGINE.default_value())
    ]
    try:
        spec = replace(engine.memory.apply_to(source), max_seqs=engine.max_num_seqs)
    except InvalidValue as error:
        raise model.error(ENGINE.name, f"{engine.name}: {error}") from None
    workload = read_workload(model.section("workload"), spec.pooling)
    lengths, req_per_s, types = workload
    own = over(model, given.defaults)
    if MAX_LEN.name not in model:
        own = replace(own, max_len=min(own.max_len, spec.max_position))
    if own.max_len > spec.max_position:
        allowed = f"at most {spec.max_position}, the context of {spec.name}"
        raise model.error("max_len", f"{own.max_len} is not allowed; allowed: {allowed}")
    refuse_longer(model, workload, own.max_len)
    adapters = read_adapters(model.section("adapters"))
    spec = memory_of_adapters(model, spec, adapters, engine.args)
    least = common.MIN.take(model)
    return Service(
        model=name,
        architecture=spec,
        slo=common.read_slo(model, spec.pooling),
        engine=engine.wire_name,
        pipelines=engine.pipelines,
        percentile=own.percentile,
        utilization=own.utilization,
        spot_share=own.spot,
        max_len_tokens=own.max_len,
        min_instances=least,
        max_instances=common.read_max(model, least),
        regions=common.read_regions(model, given.regions),
        survive=SURVIVE.take(model),
        priority=common.PRIORITY.take(model),
        mode=Mode(common.MODE.take_or(model, given.mode.value)),
        lengths=lengths,
        req_per_s=req_per_s or 0.0,
        rate_declared=req_per_s is not None,
        types=types,
        scale_in_after_s=own.scale_in_after_s,
        max_disruption=own.max_disruption,
        traffic_share=common.SHARE.take(model),
        demand_query=DEMAND.take_or(model, ""),
        served_as=SERVED_AS.take_or(model, ()),
        metric_labels=read_labels(model.section("metric_labels")),
        scale_targets=_scale_targets(model.section("scale"), given.pools),
        cautious=own.cautious,
        # The hand-over of KV that an adapter computed is not tested with vLLM.
        disaggregate=DISAGGREGATE.take_or(model, not adapters) and not spec.pooling,
        floors=_floors(model.section("floors"), own.timezone),
        freezes=model.take(FREEZE.name, partial(_windows, own.timezone), ()),
        zero_after_s=common.ZERO_AFTER.take_or(model, 0.0),
        adapters=adapters,
        weights=WEIGHTS.take_or(model, ""),
        rollout=read_rollout(model.section("rollout"), given.defaults.rollout),
    )


def _windows(timezone: str, value: object) -> tuple[Weekly, ...]:
    return tuple(Weekly.parse(text, timezone) for text in _WINDOWS(value))


def _floors(section: Section | None, timezone: str) -> tuple[tuple[Weekly, int], ...]:
    """Minimum number of combos by weekly window."""
    if section is None:
        return ()
    floors = []
    for name in section:
        least = section.take(name, _LEAST)
        try:
            floors.append((Weekly.parse(name, timezone), least))
        except InvalidValue as error:
            raise section.error(name, f"not allowed; allowed: {error.allowed}") from None
    return tuple(floors)


def _scale_targets(section: Section | None, pools: Iterable[Pool]) -> tuple[tuple[str, str], ...]:
    if section is None:
        return ()
    keda = section.section("keda", required=True)
    assert keda is not None  # noqa: S101  required
    known = sorted({pool.name for pool in pools})
    for name in keda:
        try:
            units.word(*known)(name)
        except InvalidValue as error:
            raise keda.error(name, f"no such pool; allowed: {error.allowed}") from None
    targets = {name: keda.take(name, units.text) for name in keda}
    section.finish()
    return tuple(sorted(targets.items()))
