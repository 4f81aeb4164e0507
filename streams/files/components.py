"""A model of several components, as a shoal.yaml declares it.

components: {image: {}, llm: {after: [image]}, talker: {after: [llm]}}
req_per_s: 4
requests:    {text: {share: 60%, uses: [llm]}, photo: {share: 40%, uses: [image, llm]}}
deployments: {image: {runs: [image], gpus: 1, req_per_s: {A100: 30}}, ...}
"""

from __future__ import annotations

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.components import ComponentGraph, Deployment, RequestType
from autoscaler.performance import catalog
from streams.files import units
from streams.files.yamltree import ConfigError, Section

_ROUNDING = 0.005
_RATE = units.number(1e-9, 1e9)


def read_graph(model: str, section: Section, spot: float) -> ComponentGraph:
    """The graph that `section` declares. spot: its share where it names none.

    ConfigError names file, line and key."""
    components = section.section("components", required=True)
    requests = section.section("requests", required=True)
    deployments = section.section("deployments", required=True)
    assert components and requests and deployments  # noqa: S101  required
    try:
        return ComponentGraph(
            model=model,
            after=_after(components),
            types=_types(requests),
            deployments=_deployments(deployments),
            req_per_s=section.take("req_per_s", _RATE),
            spot_share=section.take("spot", units.share, spot),
        )
    except InvalidValue as error:
        raise ConfigError(section.file, section.line, section.path, str(error)) from error


def _after(section: Section) -> dict[str, frozenset[str]]:
    found = {}
    for name, component in section.children():
        found[name] = frozenset(component.take("after", units.texts, ()))
        component.finish()
    return found


def _types(section: Section) -> tuple[RequestType, ...]:
    found = []
    for name, kind in section.children():
        share = kind.take("share", units.share)
        if share <= 0.0:
            raise kind.error("share", "0 is not allowed; allowed: a share above 0")
        found.append((name, share, frozenset(kind.take("uses", units.texts))))
        kind.finish()
    total = sum(share for _, share, _ in found)
    if abs(total - 1.0) > _ROUNDING:
        what = f"shares sum to {total:.1%}; allowed: 100% (rounding aside)"
        raise ConfigError(section.file, section.line, section.path, what)
    return tuple(RequestType(name, share / total, uses) for name, share, uses in found)


def _deployments(section: Section) -> tuple[Deployment, ...]:
    found = []
    for name, option in section.children():
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
        found.append(Deployment(name, frozenset(option.take("runs", units.texts)), gpus, by_gpu))
        option.finish()
    return tuple(found)
