"""Versions of launches: the declared one, and that of running groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Service
from autoscaler.rollout.serving_group import ServingGroup


@dataclass(frozen=True, slots=True)
class Version:
    """A version that can be launched. engine: name of the engine in assignments. digest: see
    `topics.launch_version`."""

    engine: str
    digest: str


def declared_version(service: Service) -> Version:
    """The version that `service` declares."""
    return Version(service.engine, service.version)


def version_of(group: ServingGroup) -> Version:
    """The version that `group` runs."""
    return Version(group.engine, group.launched or group.version)


def runs(group: ServingGroup, version: Version) -> bool:
    """Whether `group` runs `version`. A group of unknown version is compared by its engine."""
    digest = group.launched or group.version
    if digest:
        return digest == version.digest
    return group.engine == version.engine


def with_known_version(group: ServingGroup, service: Service | None) -> ServingGroup:
    """`group` with the declared version if its record, from an older controller, names none and its
    engine is the declared one. So an upgrade of the controller replaces no instance."""
    if service is None:
        return group
    if service.graph is not None:  # each component names its own engine
        return replace(group, engine=service.engine, version=group.version or service.version)
    if group.version or group.engine != service.engine:
        return group
    return replace(group, version=service.version)


def most_common(groups: Iterable[ServingGroup]) -> Version | None:
    """The version of most of `groups`; None without groups."""
    counts: dict[Version, int] = {}
    for group in groups:
        version = version_of(group)
        counts[version] = counts.get(version, 0) + 1
    return max(counts, key=lambda one: (counts[one], one.digest)) if counts else None
