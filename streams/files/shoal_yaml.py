"""Read `shoal.yaml`, the declared fleet, strictly into values of the core.

Defines the form of the file (docs/configuration.md lists every key) and its defaults. Every error
names file, line and key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from autoscaler.domain.cluster import Cluster, Mode, Pool, Service
from autoscaler.domain.components import ComponentGraph
from autoscaler.domain.measurement import Measurement
from autoscaler.domain.schedule import Weekly
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Slo
from autoscaler.performance.engine_arguments import AS_LOADED, EngineMemory, engine_memory
from autoscaler.planning.time_limits import window_violation
from streams.files import units
from streams.files.components_section import is_graph, read_graph_service
from streams.files.defaults_section import Defaults, over, read_defaults
from streams.files.measurements_file import read_measurements
from streams.files.mode_compatibility import refuse_mixed
from streams.files.model_source import architecture
from streams.files.name_rules import check_name
from streams.files.policy_section import read_policy
from streams.files.pools_section import read_pools
from streams.files.prometheus_section import PrometheusServer, read_prometheus
from streams.files.quality_section import read_routes, stands_for_models
from streams.files.unmanaged_section import read_unmanaged
from streams.files.user_errors import UserError
from streams.files.workload_section import read_workload, refuse_longer
from streams.files.yaml_tree import ConfigError, Section, read, read_text
from topics.engine_args import reserved_argument
from topics.engine_profiles import profile_wire_name

_MODES = tuple(mode.value for mode in Mode)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine as the operator declares it. memory: effect of the engine's arguments on a model's
    memory.

    pipelines: which nodes one instance may span, see `Service`. sleep: an instance sleeps instead
    of stopping if its node remains.
    """

    name: str
    image: str = ""
    args: tuple[str, ...] = ()
    memory: EngineMemory = AS_LOADED
    max_num_seqs: int = 256
    pipelines: str = "none"
    sleep: bool = False

    @property
    def quantization(self) -> str:
        """Storage type of the weights after loading; "" = the type in the checkpoint."""
        return self.memory.quantization

    @property
    def wire_name(self) -> str:
        """Name of the engine in assignments."""
        return profile_wire_name(self.name, self.image, self.args)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole `shoal.yaml`. kafka: bootstrap address, "" = the embedded broker. instances: cloud
    instance type by pool, for pools that declare one."""

    path: str
    cluster: Cluster
    mode: Mode
    kafka: str = ""
    prometheus: Mapping[str, PrometheusServer] = field(default_factory=dict)
    engines: Mapping[str, EngineSpec] = field(default_factory=dict)
    provision: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=Defaults)
    scores: Mapping[str, Path] = field(default_factory=dict)
    instances: Mapping[str, str] = field(default_factory=dict)

    @property
    def graphs(self) -> tuple[ComponentGraph, ...]:
        """Models that are declared as components."""
        return tuple(s.graph for s in self.cluster.services if s.graph is not None)


def parse_service(config: Config, model: str, text: str) -> Service:
    """Read the service of `model` from `text`, its section of the file as YAML or JSON.

    Defaults, engines, pools and policy are those of `config`. Raises UserError.
    """
    section = read_text(text.encode(), f"service {model}", "the keys of a model")
    check_name(section, model)
    folder = Path(config.path).parent
    made = _service(
        model, section, config.defaults, config.engines, config.cluster.pools, config.mode, folder
    )
    found = window_violation(made, config.cluster.policy)
    if found:
        raise section.error(*found)
    return made


def load_config(path: Path | str, mode: Mode = Mode.RECOMMEND, cautious: bool = True) -> Config:
    """Read `path`. mode, cautious: defaults if the file sets no mode or no capacity. Raises
    ConfigError and UserError."""
    root, raw = read(Path(path))
    found_mode = Mode(root.take("mode", units.word(*_MODES), mode.value))
    kafka = root.take("kafka", units.text, "")
    own = root.take("measurements", units.text, "")
    measurements = _measurements(root, own) if own else ()
    prometheus = read_prometheus(root.section("prometheus"))
    inherited = root.section("defaults")
    defaults = read_defaults(inherited, cautious)
    policy = read_policy(root.section("policy"))
    engines = _engines(root.section("engines"))
    pools, provision, instances = read_pools(root.section("regions", required=True))
    models = root.section("models", required=True)
    assert models is not None  # noqa: S101  required
    services = _services(models, defaults, engines, pools, found_mode)
    routes, services, scores = read_routes(models, services)
    root.finish()
    refuse_mixed(root.file, policy, services, routes)
    for service in services:
        found = window_violation(service, policy)
        if found:
            raise _said_where(root, models.section(service.model), inherited, service, *found)
    told = raw + repr(measurements).encode() if measurements else raw
    content_hash = hashlib.sha256(told).hexdigest()[:12]
    cluster = Cluster(pools, services, policy, content_hash, routes, measurements)
    return Config(
        root.file,
        cluster,
        found_mode,
        kafka,
        prometheus,
        engines,
        provision,
        defaults,
        scores,
        instances,
    )


def _measurements(root: Section, name: str) -> tuple[Measurement, ...]:
    try:
        return read_measurements(Path(root.file).parent / name)
    except UserError as error:
        raise root.error("measurements", str(error)) from None


def _said_where(
    root: Section,
    model: Section | None,
    defaults: Section | None,
    service: Service,
    key: str,
    problem: str,
) -> ConfigError:
    """An error at the place that sets `key`: the model, the defaults, or, if neither sets it, the
    policy."""
    for section in (model, defaults):
        if section is not None and key in section:
            return section.error(key, problem)
    policy = root.section("policy")
    assert policy is not None  # noqa: S101  without a shorter window no default is too long
    default = f"{key} of models.{service.model} (not set) is {service.scale_in_after_s:g}s"
    return policy.error("global_window", f"is too short: {default}")


def _engines(section: Section | None) -> dict[str, EngineSpec]:
    found = {"default": EngineSpec("default")}
    if section is None:
        return found
    for name, engine in section.children():
        check_name(section, name)
        args = engine.take("args", _args, ())
        seqs = engine.take("max_num_seqs", units.count(1, 4096), 256)
        found[name] = EngineSpec(
            name,
            engine.take("image", units.text, ""),
            args,
            _memory(engine, args),
            seqs,
            engine.take("pipelines", units.word("none", "same-slice", "same-size", "any"), "none"),
            engine.take("sleep", units.flag, False),
        )
        engine.finish()
    return found


def _args(value: object) -> tuple[str, ...]:
    args = units.texts(value, "[--quantization=fp8]")
    owned = reserved_argument(args)
    if owned is not None:
        raise InvalidValue("", owned, "arguments that the executor does not set")
    return args


def _memory(engine: Section, args: tuple[str, ...]) -> EngineMemory:
    """Effect of vLLM's arguments on a model's memory."""
    try:
        return engine_memory(args)
    except InvalidValue as error:
        raise engine.error("args", str(error)) from None


def _services(
    section: Section,
    defaults: Defaults,
    engines: Mapping[str, EngineSpec],
    pools: tuple[Pool, ...],
    mode: Mode,
) -> tuple[Service, ...]:
    services = []
    folder = Path(section.file).parent
    sections = dict(section.children())
    plain = [name for name, model in sections.items() if not is_graph(model)]
    if plain and len(plain) < len(sections):
        raise section.error(
            plain[0], "has no components; models with and without them stand in files apart"
        )
    for name, model in section.children():
        check_name(section, name)
        if stands_for_models(model):
            continue
        services.append(_service(name, model, defaults, engines, pools, mode, folder))
    if not services:
        raise ConfigError(section.file, section.line, section.path, "no model is declared")
    return tuple(services)


def _service(
    name: str,
    model: Section,
    defaults: Defaults,
    engines: Mapping[str, EngineSpec],
    pools: tuple[Pool, ...],
    mode: Mode,
    folder: Path,
) -> Service:
    """Read the section of one model. ConfigError for an invalid key or value."""
    try:
        made = _declared(name, model, defaults, engines, pools, mode, folder)
        theirs = read_unmanaged(model.section("unmanaged"), name, pools)
    except InvalidValue as error:
        key, _, more = error.field.removeprefix(f"model {name}: ").partition(": ")
        if key not in model:
            raise ConfigError(model.file, model.line, model.path, str(error)) from error
        where = f"{more}: " if more else ""
        problem = f"{where}{error.value!r} is not allowed; allowed: {error.allowed}"
        raise model.error(key, problem) from error
    model.finish()
    return replace(made, unmanaged=theirs)


def _declared(
    name: str,
    model: Section,
    defaults: Defaults,
    engines: Mapping[str, EngineSpec],
    pools: tuple[Pool, ...],
    mode: Mode,
    folder: Path,
) -> Service:
    regions = tuple(sorted({pool.region for pool in pools}))
    if is_graph(model):
        return read_graph_service(name, model, defaults, regions, mode)
    source = model.take("source", lambda value: architecture(units.text(value), folder))
    engine = model.take("engine", units.word(*engines), "default")
    try:
        spec = engines[engine].memory.apply_to(source)
    except InvalidValue as error:
        raise model.error("engine", f"{engine}: {error}") from None
    limits = model.section("slo", required=True)
    assert limits is not None  # noqa: S101  required
    slo = Slo(
        limits.take("ttft", units.duration_s) * 1000.0,
        limits.take("tpot", units.duration_s) * 1000.0,
    )
    limits.finish()
    workload = read_workload(model.section("workload"))
    lengths, req_per_s, types = workload
    own = over(model, defaults)
    if own.max_len > spec.max_position:
        allowed = f"at most {spec.max_position}, the context of {spec.name}"
        raise model.error("max_len", f"{own.max_len} is not allowed; allowed: {allowed}")
    refuse_longer(model, workload, own.max_len)
    least = model.take("min", units.count(0, 100_000), 1)
    return Service(
        model=name,
        architecture=spec,
        slo=slo,
        engine=engines[engine].wire_name,
        pipelines=engines[engine].pipelines,
        percentile=own.percentile,
        utilization=own.utilization,
        spot_share=own.spot,
        max_len_tokens=own.max_len,
        min_instances=least,
        max_instances=model.take("max", units.count(max(1, least), 100_000), 0),
        regions=model.take(
            "regions", lambda v: tuple(units.word(*regions)(r) for r in units.texts(v)), ()
        ),
        survive=model.take("survive", units.word("none", "one-node", "all-spot"), "none"),
        priority=model.take("priority", units.count(0, 100), 0),
        mode=Mode(model.take("mode", units.word(*_MODES), mode.value)),
        lengths=lengths,
        req_per_s=req_per_s,
        types=types,
        scale_in_after_s=own.scale_in_after_s,
        max_disruption=own.max_disruption,
        traffic_share=model.take("share", units.number(0.0, 1e6), 1.0),
        demand_query=model.take("demand", units.text, ""),
        scale_targets=_scale_targets(model.section("scale"), pools),
        cautious=own.cautious,
        disaggregate=model.take("disaggregate", units.flag, True),
        floors=_floors(model.section("floors"), own.timezone),
        freezes=model.take("freeze", partial(_windows, own.timezone), ()),
        zero_after_s=model.take("zero_after", units.duration_between("1ms", "7d"), 0.0),
    )


def _windows(timezone: str, value: object) -> tuple[Weekly, ...]:
    return tuple(Weekly.parse(text, timezone) for text in units.texts(value, "[fri 16:00-24:00]"))


def _floors(section: Section | None, timezone: str) -> tuple[tuple[Weekly, int], ...]:
    """Least number of combos by weekly window."""
    if section is None:
        return ()
    found = []
    for name in section:
        least = section.take(name, units.count(0, 100_000))
        try:
            found.append((Weekly.parse(name, timezone), least))
        except InvalidValue as error:
            raise section.error(name, f"not allowed; allowed: {error.allowed}") from None
    return tuple(found)


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
