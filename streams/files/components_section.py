"""Read a model of several components, as declared in `shoal.yaml`.

components: {image: {}, llm: {after: [image]}, talker: {after: [llm], media: [audio-out]}}
req_per_s: 4
requests:    {text: {share: 60%, uses: [llm]}, photo: {share: 40%, uses: [image, llm]}}
deployments: {image: {runs: [image], gpus: 1, req_per_s: {A100: 30}, start_time: 30s}, ...}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.components import ComponentGraph, Deployment, RequestType
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Slo
from autoscaler.performance import catalog
from autoscaler.rollout.assignments import component_engine
from streams.files import units
from streams.files.defaults_section import Defaults, over
from streams.files.name_rules import check_name
from streams.files.user_errors import UserError
from streams.files.yaml_tree import ConfigError, Section
from topics.routing import MEDIA

_ROUNDING = 0.005
_RATE = units.number(1e-9, 1e9)
_NO_LIMIT_MS = 3_600_000.0
_MODES = tuple(mode.value for mode in Mode)


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
    least = section.take("min", units.count(0, 100_000), 1)
    return Service(
        model=model,
        architecture=_unknown(model),
        slo=_slo(section.section("slo")),
        percentile=own.percentile,
        utilization=own.utilization,
        spot_share=own.spot,
        max_len_tokens=own.max_len,
        min_instances=least,
        max_instances=section.take("max", units.count(max(1, least), 100_000), 0),
        regions=section.take(
            "regions", lambda v: tuple(units.word(*regions)(r) for r in units.texts(v)), ()
        ),
        priority=section.take("priority", units.count(0, 100), 0),
        mode=Mode(section.take("mode", units.word(*_MODES), mode.value)),
        req_per_s=graph.req_per_s,
        scale_in_after_s=own.scale_in_after_s,
        max_disruption=own.max_disruption,
        traffic_share=section.take("share", units.number(0.0, 1e6), 1.0),
        zero_after_s=section.take("zero_after", units.duration_s, 0.0),
        graph=graph,
    )


def refuse_components(path: str, graphs: Sequence[ComponentGraph], why: str) -> None:
    """Raise UserError if the file at `path` declares models of components, for a command that does
    not support them. why: the reason in the message."""
    if graphs:
        raise UserError(f"{path}: models.{graphs[0].model}: {why}")


def stage_engines(services: Iterable[Service]) -> dict[str, dict[str, object]]:
    """Simulated engine of each deployment, by its name in assignments, for the executor's file: the
    duration of a request for each deployed component, on each GPU with a declared rate."""
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
            req_per_s=section.take("req_per_s", _RATE),
            spot_share=spot,
        )
    except InvalidValue as error:
        raise ConfigError(section.file, section.line, section.path, str(error)) from error


def _components(section: Section) -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    """Predecessors of each component, and the media of the requests that need the component. The
    media are declared, or taken from the component's name if that is a medium."""
    after, media = {}, {}
    for name, component in section.children():
        check_name(section, name)
        after[name] = frozenset(component.take("after", units.texts, ()))
        usual = (name,) if name in MEDIA else ()
        media[name] = frozenset(component.take("media", _media, usual))
        component.finish()
    return after, media


def _media(value: object) -> tuple[str, ...]:
    one_of = units.word(*MEDIA)
    return tuple(one_of(medium) for medium in units.texts(value))


def _types(section: Section, media: Mapping[str, frozenset[str]]) -> tuple[RequestType, ...]:
    found: list[tuple[str, float, frozenset[str], frozenset[str]]] = []
    for name, kind in section.children():
        check_name(section, name)
        share = kind.take("share", units.share)
        if share <= 0.0:
            raise kind.error("share", "0 is not allowed; allowed: a share above 0")
        uses = frozenset(kind.take("uses", units.texts))
        with_ = frozenset(medium for one in uses for medium in media.get(one, ()))
        for other, _, _, same in found:
            if same == with_:
                told = ", ".join(sorted(with_)) or "text alone"
                what = f"cannot be told from {other}: requests of both come with {told}"
                raise kind.error("uses", f"{what}; give their components other `media`")
        found.append((name, share, uses, with_))
        kind.finish()
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
        gpus = option.take("gpus", units.count(1, 8), 1)
        start_s = option.take("start_time", units.duration_s, 60.0)
        runs = frozenset(option.take("runs", units.texts))
        found.append(Deployment(name, runs, gpus, by_gpu, start_s))
        option.finish()
    return tuple(found)


def _slo(section: Section | None) -> Slo:
    if section is None:
        return Slo(_NO_LIMIT_MS, _NO_LIMIT_MS)
    slo = Slo(
        section.take("ttft", units.duration_s) * 1000.0,
        section.take("tpot", units.duration_s) * 1000.0,
    )
    section.finish()
    return slo


def _unknown(model: str) -> ModelSpec:
    """Placeholder architecture of minimal size, because the architecture is unknown."""
    return ModelSpec(model, 1, 1, 1, 1, 1, 1, 1, 1.0, 1.0, 1.0, 1.0, max_position=100_000_000)
