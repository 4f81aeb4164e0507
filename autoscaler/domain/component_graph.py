"""Models of components (encoders, an LLM, talkers, generators), of which each request needs some.
This module computes the processing times and paths of requests. Source: Cornserve sec. 4 and App.
B, C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.validation import InvalidValue, finite

_SUM = 1e-6
"""Error within which shares sum to 1."""
_LEAST_SHARE = 1e-3
"""Smallest planned share of a request type, so that each type keeps a path."""


@dataclass(frozen=True, slots=True)
class RequestType:
    """Requests that need the same components. share: their share of all requests, in (0, 1].

    media: the media by which a gateway recognises these requests, see
    `topics.routing.RequestKind`.
    """

    name: str
    share: float
    uses: frozenset[str]
    media: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        finite(f"request type {self.name}: share", self.share, 1e-9, 1.0)
        if not self.uses:
            raise InvalidValue(f"request type {self.name}: uses", [], "at least one component")


@dataclass(frozen=True, slots=True)
class Deployment:
    """One way to run components in an instance: one component alone, or several that share its
    GPUs.

    gpus: GPUs per instance, on one node. req_per_s: by GPU type, the capacity of one instance at
    the declared mix of requests (the profiled rate b of App. C). It includes the requests that do
    not need the instance. start_s: seconds from launch to ready.
    """

    name: str
    components: frozenset[str]
    gpus: int
    req_per_s: Mapping[str, float]
    start_s: float = 60.0

    def __post_init__(self) -> None:
        finite(f"deployment {self.name}: start_s", self.start_s, 0.0, 86_400.0)
        if self.gpus not in SLICE_SIZES:
            raise InvalidValue(f"deployment {self.name}: gpus", self.gpus, "1, 2, 4 or 8")
        if not self.components:
            raise InvalidValue(f"deployment {self.name}: runs", [], "at least one component")
        if not self.req_per_s:
            raise InvalidValue(f"deployment {self.name}: req_per_s", {}, "a rate per GPU type")
        for gpu, rate in self.req_per_s.items():
            finite(f"deployment {self.name}: req_per_s on {gpu}", rate, 1e-9, 1e9)


@dataclass(frozen=True, slots=True)
class Hop:
    """One step of a path: the components (`role`) that `deployment` runs for a request."""

    deployment: Deployment
    role: frozenset[str]


Path = tuple[Hop, ...]


@dataclass(frozen=True, slots=True)
class ComponentGraph:
    """A model as components.

    after: by component, the components whose output it needs. deployments: the options; every
    component that a type uses is in one of them. spot_share: maximum share of the model's requests
    that may depend on spot nodes. demanded: current shares of the types, in the order of the types;
    empty = the declared shares, at which the rates were measured.
    """

    model: str
    after: Mapping[str, frozenset[str]]
    types: tuple[RequestType, ...]
    deployments: tuple[Deployment, ...]
    req_per_s: float = 0.0
    spot_share: float = 0.0
    demanded: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        who = f"model {self.model}"
        if self.demanded and len(self.demanded) != len(self.types):
            raise InvalidValue(f"{who}: demanded", len(self.demanded), "a share per type")
        known = " or ".join(self.after)
        for component, needs in self.after.items():
            for need in needs - set(self.after):
                raise InvalidValue(f"{who}: component {component}: after", need, known)
        _check_acyclic(who, self.after)
        total = sum(kind.share for kind in self.types)
        if abs(total - 1.0) > _SUM:
            raise InvalidValue(f"{who}: shares of request types", total, "a sum of 1")
        covered: set[str] = set()
        for option in self.deployments:
            for component in option.components - set(self.after):
                raise InvalidValue(f"{who}: deployment {option.name}: runs", component, known)
            covered |= option.components
        for kind in self.types:
            for component in kind.uses - set(self.after):
                raise InvalidValue(f"{who}: type {kind.name}: uses", component, known)
            for component in kind.uses - covered:
                allowed = "components that some deployment runs"
                raise InvalidValue(f"{who}: type {kind.name}: uses", component, allowed)
        finite(f"{who}: req_per_s", self.req_per_s, 0.0, 1e9)
        finite(f"{who}: spot", self.spot_share, 0.0, 1.0)

    def with_shares(self, shares: Mapping[str, float]) -> ComponentGraph:
        """A copy of the graph with other `shares` of its types, by name.

        A type without requests keeps a small share, so that every plan can serve it.
        """
        found = [max(_LEAST_SHARE, shares.get(kind.name, 0.0)) for kind in self.types]
        return replace(self, demanded=tuple(share / sum(found) for share in found))

    def rates(self) -> tuple[float, ...]:
        """Requests/s of each type, in the order of the types."""
        shares = self.demanded or tuple(kind.share for kind in self.types)
        return tuple(share * self.req_per_s for share in shares)

    def paths(self, kind: RequestType) -> tuple[Path, ...]:
        """All paths for requests of `kind`: each component runs once, after the components that it
        needs.

        An instance runs all components that it contains and that the request still needs. Paths
        that differ only in the order of independent visits count as one.
        """
        found: dict[frozenset[tuple[str, frozenset[str]]], Path] = {}
        self._extend((), kind.uses, found)
        return tuple(found[key] for key in sorted(found, key=_sorted_key))

    def _extend(
        self,
        path: Path,
        left: frozenset[str],
        found: dict[frozenset[tuple[str, frozenset[str]]], Path],
    ) -> None:
        if not left:
            key = frozenset((hop.deployment.name, hop.role) for hop in path)
            found.setdefault(key, path)
            return
        for option in self.deployments:
            role = option.components & left
            if role and not any((self.after[c] & left) - role for c in role):
                self._extend((*path, Hop(option, role)), left - role, found)

    def seconds(self, gpu: str) -> Mapping[tuple[str, frozenset[str]], float]:
        """Seconds that a request occupies one instance on `gpu`, by (deployment, role). Method:
        Algorithm 3 (App. C). The time of a component follows from the deployment that runs it
        alone, profiled with one mix. The times in a shared deployment are multiplied by a factor,
        so that their mean equals the measured one. If a component was not measured alone on this
        GPU, the smallest shared deployment with it is used, as if all of its components took
        equally long.
        """
        uses = {c: sum(kind.share for kind in self.types if c in kind.uses) for c in self.after}
        measured = [option for option in self.deployments if gpu in option.req_per_s]
        times: dict[str, float] = {}
        for component in self.after:
            alone = [o for o in measured if o.components == {component}]
            shared = [o for o in measured if component in o.components]
            if alone and uses[component] > 0.0:
                times[component] = 1.0 / alone[0].req_per_s[gpu] / uses[component]
            elif shared and uses[component] > 0.0:
                option = min(shared, key=lambda o: (len(o.components), o.name))
                visits = sum(uses[c] for c in option.components)
                times[component] = 1.0 / option.req_per_s[gpu] / visits
        made: dict[tuple[str, frozenset[str]], float] = {}
        for option in measured:
            mean = sum(
                kind.share * sum(times[c] for c in option.components & kind.uses)
                for kind in self.types
            )
            factor = 1.0 / option.req_per_s[gpu] / mean if mean > 0.0 else 1.0
            for kind in self.types:
                for path in self.paths(kind):
                    for hop in path:
                        if hop.deployment == option:
                            made[option.name, hop.role] = factor * sum(times[c] for c in hop.role)
        return made


def _check_acyclic(who: str, after: Mapping[str, frozenset[str]]) -> None:
    done: set[str] = set()
    while len(done) < len(after):
        free = {c for c in after if c not in done and after[c] <= done}
        if not free:
            circle = sorted(set(after) - done)
            raise InvalidValue(f"{who}: components: after", circle, "no circle")
        done |= free


def _sorted_key(key: frozenset[tuple[str, frozenset[str]]]) -> list[tuple[str, list[str]]]:
    return sorted((name, sorted(role)) for name, role in key)
