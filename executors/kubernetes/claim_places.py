"""Which claimed pods belong to which slot when a pool changes from mode `scale` to `pods`.

In mode `scale` a slot is no node: its instances claim pods anywhere. In mode `pods` a slot is one
node. So the instances exchange pods such that a slot has the pods of one node, as far as possible.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_template import read_launch
from executors.kubernetes.pod_view import PodView

_LABELS = (names.SLOT, names.INSTANCE, names.GROUP, names.ROLE)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claimed pod. kind: pods of equal kinds can be exchanged. gpus: number of GPUs."""

    pod: str
    node: str
    slot: str
    kind: Hashable
    gpus: int


def exchanged(claims: Collection[Claim]) -> dict[str, str]:
    """By pod, the pod whose claim it takes over; only pods that change. Empty unless the slots are
    on fewer nodes afterwards."""
    home = _homes(claims)
    found: dict[str, str] = {}
    for kind in dict.fromkeys(claim.kind for claim in claims):
        same = [claim for claim in claims if claim.kind == kind]
        free = {one.pod: one for one in same}
        # Claims that have a pod on their home come first, so that they keep it.
        for claim in sorted(same, key=lambda one: one.node != home.get(one.slot)):
            pod = min(free.values(), key=lambda one, claim=claim: _rank(claim, one, home))  # type: ignore[misc]
            del free[pod.pod]
            if pod.pod != claim.pod:
                found[pod.pod] = claim.pod
    slots = {claim.pod: claim.slot for claim in claims}
    after = {(slots[found.get(one.pod, one.pod)], one.node) for one in claims}
    return found if len(after) < len({(one.slot, one.node) for one in claims}) else {}


def _rank(claim: Claim, pod: Claim, home: dict[str, str]) -> tuple[bool, bool, bool]:
    is_home = pod.node == home.get(claim.slot)
    return not is_home, pod.node in home.values() and not is_home, pod.pod != claim.pod


def _homes(claims: Iterable[Claim]) -> dict[str, str]:
    """The node of each slot: the largest slots get the nodes with the most claimed GPUs."""
    asked: Counter[str] = Counter()
    there: Counter[str] = Counter()
    both: Counter[tuple[str, str]] = Counter()
    for one in claims:
        asked[one.slot] += one.gpus
        there[one.node] += one.gpus
        both[one.slot, one.node] += one.gpus
    pairs = sorted(
        itertools.product(sorted(asked), sorted(there)),
        key=lambda pair: (-min(asked[pair[0]], there[pair[1]]), -both[pair]),
    )
    home: dict[str, str] = {}
    for slot, node in pairs:
        if slot not in home and node not in home.values():
            home[slot] = node
    return home


async def align_claims(fleet: PodFleet, slots: Iterable[str]) -> None:
    """Exchange the claims on pods of other owners in `slots`. Call before they are adopted."""
    pods = [pod for slot in slots for pod in fleet.in_slot(slot, managed=False) if _moves(pod)]
    by_name = {pod.name: pod for pod in pods}
    for name, source in exchanged([_claim(pod) for pod in pods]).items():
        former = by_name[source]
        change: Manifest = {
            "labels": {key: former.labels.get(key) for key in _LABELS},
            "annotations": {names.LAUNCH: former.annotations[names.LAUNCH]},
        }
        await fleet.mark_pod(name, change)


def _moves(pod: PodView) -> bool:
    drains = pod.labels.get(names.SERVING) == "draining"
    return pod.serves and not drains and read_launch(pod.annotations) is not None


def _claim(pod: PodView) -> Claim:
    launch = read_launch(pod.annotations)
    assert launch is not None  # noqa: S101  see _moves
    slot = pod.labels[names.SLOT]
    return Claim(pod.name, pod.node, slot, pod.controller, len(launch.desired.gpus))
