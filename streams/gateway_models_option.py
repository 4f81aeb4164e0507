"""The options that tell a gateway which models are declared, before any of them has routes."""

from __future__ import annotations

from autoscaler.domain.cluster import Cluster


def declared_options(cluster: Cluster) -> list[str]:
    """One option per name that requests may be for, with the other name of a model; each by itself,
    as a single argument must not be longer than 128 KiB."""
    found = [f"--declared={route.name}" for route in cluster.routes]
    for service in cluster.services:
        other = service.other_name
        found.append(f"--declared={service.model}" + (f"={other}" if other else ""))
    return found
