"""Read `shoal.yaml`, the declared fleet, strictly into values of the core.

Defines the form of the file (docs/reference/configuration.md lists every key) and its defaults.
Every error names file, line and key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.measurement import Measurement
from autoscaler.planning.capacity_provenance import with_measured_rooms
from autoscaler.planning.time_limits import window_violation
from streams.files import units
from streams.files.adapters_section import refuse_shared_names
from streams.files.defaults_section import DEFAULTS, Defaults, read_defaults
from streams.files.engines_section import ENGINES, EngineSpec, read_engines
from streams.files.keys import Group, Key
from streams.files.kubernetes_section import KubernetesPool
from streams.files.measurements_file import read_measurements, read_rooms
from streams.files.mode_compatibility import refuse_mixed
from streams.files.model_keys import MODES
from streams.files.models_section import MODELS, Surroundings, read_model, read_models
from streams.files.name_rules import check_name
from streams.files.policy_section import LONG_WINDOW, POLICY, read_policy
from streams.files.pools_section import REGIONS, read_pools
from streams.files.prometheus_section import PROMETHEUS, PrometheusServer, read_prometheus, url
from streams.files.quality_section import read_routes
from streams.files.served_names import refuse_shared
from streams.files.user_errors import UserError
from streams.files.yaml_tree import ConfigError, Section, read, read_text

MODE = Key(
    "mode",
    units.word(*MODES),
    "`recommend` only reports, `approve` waits for `shoal approve`, `act` changes the fleet.",
    otherwise="`recommend`; `act` in `shoal up`",
)
KAFKA = Key(
    "kafka", units.text, "Bootstrap address of Kafka, HOST:PORT.", otherwise="the embedded broker"
)
MEASUREMENTS = Key(
    "measurements",
    units.text,
    "File of `shoal profile import` or `shoal profile measure`, relative to this file.",
    otherwise="the packaged performance model alone",
)
SERVING_PODS = Key(
    "serving_pods",
    url,
    "URL of the path `/serving` of `shoal kubernetes serving --serve`. That process counts the "
    "servers of `unmanaged`.",
    otherwise="counted through Prometheus",
)
SHOAL_YAML = Group(
    "The declared fleet.",
    (MODE, KAFKA, MEASUREMENTS, SERVING_PODS),
    {
        "prometheus": PROMETHEUS,
        "defaults": DEFAULTS,
        "policy": POLICY,
        "regions": REGIONS,
        "models": MODELS,
        "engines": ENGINES,
    },
    required=("regions", "models"),
)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole `shoal.yaml`. kafka: bootstrap address, "" = the embedded broker. instances: cloud
    instance type by pool, for pools that declare one. kubernetes: settings by pool, for pools on
    Kubernetes. serving_pods: URL of the report of serving pods, "" = none. rooms: KV
    caches imported from logs of starts, which the services of `cluster` already use."""

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
    kubernetes: Mapping[str, KubernetesPool] = field(default_factory=dict)
    serving_pods: str = ""
    rooms: tuple[MeasuredRoom, ...] = ()

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
    given = Surroundings(config.defaults, config.engines, config.cluster.pools, config.mode, folder)
    service = with_measured_rooms(read_model(model, section, given), config.rooms)
    violation = window_violation(service, config.cluster.policy)
    if violation:
        raise section.error(*violation)
    return service


def load_config(path: Path | str, mode: Mode = Mode.RECOMMEND, cautious: bool = True) -> Config:
    """Read `path`. mode, cautious: defaults if the file sets no mode or no capacity. Raises
    ConfigError and UserError."""
    root, raw = read(Path(path))
    own_mode = Mode(MODE.take_or(root, mode.value))
    kafka = KAFKA.take_or(root, "")
    own = MEASUREMENTS.take_or(root, "")
    measurements, rooms = _measurements(root, own) if own else ((), ())
    serving_pods = SERVING_PODS.take_or(root, "")
    prometheus = read_prometheus(root.section("prometheus"))
    inherited = root.section("defaults")
    defaults = read_defaults(inherited, cautious)
    policy = read_policy(root.section("policy"))
    engines = read_engines(root.section("engines"))
    declared = read_pools(root.section("regions", required=True))
    pools = declared.pools
    models = root.section("models", required=True)
    assert models is not None  # noqa: S101  required
    given = Surroundings(defaults, engines, pools, own_mode, Path(root.file).parent)
    services = tuple(with_measured_rooms(s, rooms) for s in read_models(models, given))
    refuse_shared(models, services)
    routes, services, scores = read_routes(models, services)
    SHOAL_YAML.finish(root)
    refuse_mixed(root.file, policy, services, routes)
    refuse_shared_names(models, services)
    for service in services:
        violation = window_violation(service, policy)
        if violation:
            model = models.section(service.model)
            raise _error_at_origin(root, model, inherited, service, *violation)
    content = raw + repr(measurements).encode() if measurements else raw
    content += repr(rooms).encode() if rooms else b""
    content_hash = hashlib.sha256(content).hexdigest()[:12]
    cluster = Cluster(pools, services, policy, content_hash, routes, measurements)
    return Config(
        root.file,
        cluster,
        own_mode,
        kafka,
        prometheus,
        engines,
        declared.provision,
        defaults,
        scores,
        declared.instances,
        declared.kubernetes,
        serving_pods,
        rooms,
    )


def _measurements(
    root: Section, name: str
) -> tuple[tuple[Measurement, ...], tuple[MeasuredRoom, ...]]:
    path = Path(root.file).parent / name
    try:
        return read_measurements(path), read_rooms(path)
    except UserError as error:
        raise root.error("measurements", str(error)) from None


def _error_at_origin(
    root: Section,
    model: Section | None,
    defaults: Section | None,
    service: Service,
    key: str,
    problem: str,
) -> ConfigError:
    """An error at the place that sets `key`: the model, else the defaults, else the policy."""
    for section in (model, defaults):
        if section is not None and key in section:
            return section.error(key, problem)
    policy = root.section("policy")
    assert policy is not None  # noqa: S101  without a shorter window no default is too long
    default = f"{key} of models.{service.model} (not set) is {service.scale_in_after_s:g}s"
    return policy.error(LONG_WINDOW.name, f"is too short: {default}")
