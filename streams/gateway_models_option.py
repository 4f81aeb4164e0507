"""Gateway options for the declared models and for the hosts of media.

With these options, the gateway knows the models before they have routes, and refuses media from
other hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autoscaler.domain.cluster import Cluster
from topics.engine_args import media_domains


def declared_options(cluster: Cluster) -> list[str]:
    """One option per name that requests may use, with the model's alias if the model has one.

    The names have separate options because a single argument must not exceed 128 KiB.
    """
    found = [f"--declared={route.name}" for route in cluster.routes]
    for service in cluster.services:
        other = service.hugging_face_name
        found.append(f"--declared={service.model}" + (f"={other}" if other else ""))
        found += [f"--declared={service.model}={one.name}" for one in service.adapters]
    return found


def media_options(engine_args: Iterable[Sequence[str]]) -> list[str]:
    """The option with all hosts that the arguments of any engine allow. No option if there are
    none.

    Each engine still refuses hosts that its own arguments do not allow.
    """
    domains = sorted(frozenset[str]().union(*map(media_domains, engine_args)))
    return [f"--media-domains={','.join(domains)}"] if domains else []
