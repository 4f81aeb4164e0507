"""Templates from which executors launch instances, as a part of versions.

An executor reports the digest of the template that it uses now, and of the template of each running
instance. So a changed template is a changed version of the models that are launched from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.rollout_state import RolloutState
from topics.fleet import Status
from topics.launch_version import digest_of, with_template, without_template


def with_templates(cluster: Cluster, statuses: Mapping[str, Status]) -> Cluster:
    """`cluster` in which each service has the digest of the present templates of its engine."""
    found: dict[str, set[str]] = {}
    for status in statuses.values():
        for engine, digest in status.templates.items():
            found.setdefault(engine, set()).add(digest)
    if not found:
        return cluster
    services = tuple(
        replace(one, template=digest_of(found[one.engine]))
        if one.engine in found and one.graph is None
        else one
        for one in cluster.services
    )
    return replace(cluster, services=services)


def with_launched(
    groups: tuple[ServingGroup, ...],
    cluster: Cluster,
    statuses: Mapping[str, Status],
    rollouts: Mapping[str, RolloutState],
) -> tuple[ServingGroup, ...]:
    """`groups` with the versions that they run, by the templates of their instances.

    A group whose nodes still have its template runs the declared version, even if other nodes got
    another template. A group of an earlier template runs the former version.
    """
    services = {one.model: one for one in cluster.services if one.graph is None}
    templated = {m for m, one in services.items() if _has_template(one, rollouts.get(m))}
    found = []
    for group in groups:
        service, rollout = services.get(group.model), rollouts.get(group.model)
        concerned = group.model in templated or group.launched
        if service is not None and group.version and concerned:
            launched = _launched(group, service, rollout, _former_template(group, statuses))
            launched = "" if launched == group.version else launched
            if launched != group.launched:
                group = replace(group, launched=launched)
        found.append(group)
    return tuple(found)


def _has_template(service: Service, rollout: RolloutState | None) -> bool:
    """Whether the declared version or the former one contains a template."""
    base = rollout.base if rollout is not None else None
    return bool(service.template) or (
        base is not None and base.digest != without_template(base.digest)
    )


def _former_template(group: ServingGroup, statuses: Mapping[str, Status]) -> str:
    """The template of an instance whose node has another one now; "" if there is none."""
    for placed in group.placed:
        status = statuses.get(placed.node)
        present = status.templates.get(group.engine) if status is not None else None
        if status is None or not present:
            continue
        for seen in status.instances:
            if seen.instance == placed.instance and seen.template not in ("", present):
                return seen.template
    return ""


def _launched(
    group: ServingGroup, service: Service, rollout: RolloutState | None, former: str
) -> str:
    """The version that `group` runs. former: its template if it is no longer present."""
    declared, part = service.version, without_template(group.version)
    base = rollout.base if rollout is not None else None
    if part == without_template(declared) and not former:
        # The executor no longer knew the former template of this launch.
        is_substitute = (
            rollout is not None
            and base is not None
            and rollout.refused == declared != base.digest == group.version
        )
        return group.version if is_substitute else declared
    if base is not None and base.digest != declared and part == without_template(base.digest):
        return base.digest
    return with_template(part, former) if former else group.version
