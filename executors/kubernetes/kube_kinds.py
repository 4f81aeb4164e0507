"""The kinds of Kubernetes objects that this package reads or writes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from topics.checks import InvalidValue

_KIND = re.compile(r"(?:([a-z0-9.-]+)/)?(v[a-z0-9]+)/([A-Z][A-Za-z]+)/([a-z]+)\Z")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of objects. group: "" for the core group. plural: as in the server's paths."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The value of `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version


POD = Kind("", "v1", "Pod", "pods")
EVENT = Kind("", "v1", "Event", "events")
NAMESPACE = Kind("", "v1", "Namespace", "namespaces", namespaced=False)
NODE = Kind("", "v1", "Node", "nodes", namespaced=False)
DEPLOYMENT = Kind("apps", "v1", "Deployment", "deployments")
STATEFUL_SET = Kind("apps", "v1", "StatefulSet", "statefulsets")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets")
AUTOSCALER = Kind("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
RESOURCE_CLAIM = Kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")
LEASE = Kind("coordination.k8s.io", "v1", "Lease", "leases")
SHOAL_MODEL = Kind("shoal.dev", "v1alpha1", "ShoalModel", "shoalmodels")
NODE_CLAIM = Kind("karpenter.sh", "v1", "NodeClaim", "nodeclaims", namespaced=False)
NODE_POOL = Kind("karpenter.sh", "v1", "NodePool", "nodepools", namespaced=False)
NODE_OVERLAY = Kind("karpenter.sh", "v1alpha1", "NodeOverlay", "nodeoverlays", namespaced=False)

SCALABLE = (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET)


def parse_kind(text: str) -> Kind:
    """The kind named "GROUP/VERSION/KIND/PLURAL", such as "example.com/v1/EngineSet/enginesets".

    Raises InvalidValue for any other form.
    """
    match = _KIND.match(text)
    if match is None:
        raise InvalidValue("kind", text, "GROUP/VERSION/KIND/PLURAL")
    group, version, kind, plural = match.groups()
    return Kind(group or "", version, kind, plural)
