"""Read a model of several components, as declared in `shoal.yaml`.

components: {image: {}, llm: {after: [image]}, talker: {after: [llm], media: [audio-out]}}
req_per_s: 4
requests:    {text: {share: 60%, uses: [llm]}, photo: {share: 40%, uses: [image, llm]}}
deployments: {image: {runs: [image], gpus: 1, req_per_s: {A100: 30}, start_time: 30s}, ...}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.component_graph import ComponentGraph, Deployment, RequestType
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Slo
from autoscaler.performance import catalog
from autoscaler.rollout.assignments import component_engine
from streams.files import model_keys as common
from streams.files import units
from streams.files.defaults_section import DEFAULTS, Defaults, over
from streams.files.keys import Group, Key, Named
from streams.files.name_rules import check_name
from streams.files.user_errors import UserError
from streams.files.yaml_tree import ConfigError, Section
from topics.routing import MEDIA

_ROUNDING = 0.005
_RATE = units.number(1e-9, 1e9)
_NO_LIMIT_MS = 3_600_000.0

_NAMES = units.list_of(units.text, "[image]")
_MEDIA = units.list_of(units.word(*MEDIA), "[image]")

AFTER = Key("after", _NAMES, "Components whose result this one needs.", otherwise="none")
MEDIA_KEY = Key(
    "media",
    _MEDIA,
    "Media of the requests that need this component.",
    otherwise="the component's name, if that is a medium",
)
COMPONENT = Group("A step of the model, such as an encoder.", (AFTER, MEDIA_KEY))
SHARE = Key("share", units.share, "Share of the requests. All shares sum to 100%.")
USES = Key("uses", _NAMES, "Components that such a request runs through.")
REQUEST = Group("One type of request.", (SHARE, USES))
RUNS = Key("runs", _NAMES, "Components that one instance runs.")
GPUS = Key("gpus", units.count(1, 8), "GPUs of one instance.", "1")
START_TIME = Key("start_time", units.duration_s, "Time until an instance is ready.", "60s")
DEPLOYMENT = Group(
    "One way to run components.",
    (RUNS, GPUS, START_TIME),
    {"req_per_s": Named("Measured requests/s by GPU type.", _RATE)},
    required=("req_per_s",),
)
REQ_PER_S = Key("req_per_s", _RATE, "Planned demand in requests/s.")
COMPONENTS_MODEL = Group(
    "A model of several components.",
    (
        REQ_PER_S, common.MIN, common.MAX, common.REGIONS, common.PRIORITY, common.MODE,
        common.SHARE, common.ZERO_AFTER, *DEFAULTS.keys,
    ),
    {
        "components": Named("Components by name.", COMPONENT),
        "requests": Named("Types of request by name.", REQUEST),
        "deployments": Named("Deployments by name.", DEPLOYMENT),
        "slo": common.SLO,
    },
    required=("components", "requests", "deployments"),
)  # fmt: skip


def is_graph(section: Section) -> bool:
    """Whether this entry of `models` is a model of components."""
    return "components" in section


def read_graph_service(
    model: str, section: Section, defaults: Defaults, regions: tuple[str, ...], mode: Mode
) -> Service:
    """Read the service that `section` declares. ConfigError names file, line and key.

    The declared rates were measured at a latency that the user accepts, so the service has no SLO
    unless one is declared. A model of components has no architecture from which to predict
    performance.
    """
    own = over(section, defaults)
    graph = _graph(model, section, own.spot)
    least = common.MIN.take(section)
    return Service(
        model=model,
        architecture=_unknown(model),
        slo=common.read_slo(section) if "slo" in section else Slo(_NO_LIMIT_MS, _NO_LIMIT_MS),
        percentile=own.percentile,
        utilization=own.utilization,
        spot_share=own.spot,
        max_len_tokens=own.max_len,
        min_instances=least,
        max_instances=common.read_max(section, least),
        regions=common.read_regions(section, regions),
        priority=common.PRIORITY.take(section),
        mode=Mode(common.MODE.take_or(section, mode.value)),
        req_per_s=graph.req_per_s,
        scale_in_after_s=own.scale_in_after_s,
        max_disruption=own.max_disruption,
        traffic_share=common.SHARE.take(section),
        zero_after_s=common.ZERO_AFTER.take_or(section, 0.0),
        graph=graph,
    )


def refuse_components(path: str, graphs: Sequence[ComponentGraph], why: str) -> None:
    """Raise UserError if the file at `path` declares component models.

    For commands that do not support them. why: the reason in the message.
    """
    if graphs:
        raise UserError(f"{path}: models.{graphs[0].model}: {why}")


def stage_engines(services: Iterable[Service]) -> dict[str, dict[str, object]]:
    """The simulated engine of each deployment, as a section of the executor's file, by the name
    that assignments use.

    The section states how long a request takes at each component, on each GPU with a declared rate.
    """
    found: dict[str, dict[str, object]] = {}
    for graph in (service.graph for service in services if service.graph is not None):
        for option in graph.deployments:
            seconds: dict[str, dict[str, float]] = {}
            for gpu in option.req_per_s:
                for (name, role), each in graph.seconds(gpu).items():
                    if name == option.name:
                        seconds.setdefault(gpu, {})[",".join(sorted(role))] = each
            engine = component_engine(graph.model, option.name)
            about = {"kind": "simulated-stage", "seconds": seconds, "startup_s": option.start_s}
            found[engine] = about
    return found


def _graph(model: str, section: Section, spot: float) -> ComponentGraph:
    components = section.section("components", required=True)
    requests = section.section("requests", required=True)
    deployments = section.section("deployments", required=True)
    assert components and requests and deployments  # noqa: S101  required
    after, media = _components(components)
    try:
        return ComponentGraph(
            model=model,
            after=after,
            types=_types(requests, media),
            deployments=_deployments(deployments),
            req_per_s=REQ_PER_S.take(section),
            spot_share=spot,
        )
    except InvalidValue as error:
        raise ConfigError(section.file, section.line, section.path, str(error)) from error


def _components(section: Section) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """(predecessors of each component, media of the requests that need the component).

    The media are declared. Otherwise a component with the name of a medium needs that medium.
    """
    after, media = {}, {}
    for name, component in section.children():
        check_name(section, name)
        after[name] = frozenset(AFTER.take_or(component, ()))
        usual = (name,) if name in MEDIA else ()
        media[name] = frozenset(MEDIA_KEY.take_or(component, usual))
        COMPONENT.finish(component)
    return after, media


def _types(section: Section, media: Mapping[str, frozenset[str]]) -> tuple[RequestType, ...]:
    found: list[tuple[str, float, frozenset[str], frozenset[str]]] = []
    for name, kind in section.children():
        check_name(section, name)
        share = SHARE.take(kind)
        if share <= 0.0:
            raise kind.error("share", "0 is not allowed; allowed: a share above 0")
        uses = frozenset(USES.take(kind))
        with_ = frozenset(medium for one in uses for medium in media.get(one, ()))
        for other, _, _, same in found:
            if same == with_:
                told = ", ".join(sorted(with_)) or "text alone"
                what = f"cannot be distinguished from {other}: requests of both come with {told}"
                raise kind.error("uses", f"{what}; give their components other `media`")
        found.append((name, share, uses, with_))
        REQUEST.finish(kind)
    total = sum(share for _, share, _, _ in found)
    if abs(total - 1.0) > _ROUNDING:
        what = f"shares sum to {total:.1%}; allowed: 100% (rounding aside)"
        raise ConfigError(section.file, section.line, section.path, what)
    return tuple(
        RequestType(name, share / total, uses, with_) for name, share, uses, with_ in found
    )


def _deployments(section: Section) -> tuple[Deployment, ...]:
    found = []
    for name, option in section.children():
        check_name(section, name)
        rates = option.section("req_per_s", required=True)
        assert rates is not None  # noqa: S101  required
        by_gpu = {}
        for gpu in rates:
            try:
                known = catalog.gpu(gpu).name
            except InvalidValue as error:
                raise rates.error(gpu, str(error)) from None
            by_gpu[known] = rates.take(gpu, _RATE)
        gpus, start_s = GPUS.take(option), START_TIME.take(option)
        runs = frozenset(RUNS.take(option))
        found.append(Deployment(name, runs, gpus, by_gpu, start_s))
        DEPLOYMENT.finish(option)
    return tuple(found)


def _unknown(model: str) -> ModelSpec:
    """Placeholder of minimal size, because the real architecture is unknown."""
    return ModelSpec(model, 1, 1, 1, 1, 1, 1, 1, 1.0, 1.0, 1.0, 1.0, max_position=100_000_000)
