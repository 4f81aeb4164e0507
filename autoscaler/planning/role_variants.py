"""Role variants: other roles of a running prefill-decode combo on the same slices.

Candidates have the prefill-decode ratio with the lowest cost per request, which depends on the
lengths and may need other slices. Role variants keep the slices, so that a combo in a full pool has
a switch target.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Arrivals, Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.combo_names import combo_id
from autoscaler.planning.combo_usage import slices_of

MIN_GAIN = 1.05
"""A role switch must multiply the requests/s by at least this factor, because smaller gains
fluctuate with the measured lengths."""

_Members = list[tuple[Phase, int, str, int]]


def best_roles(
    combo: Combo,
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    arrivals: Arrivals,
) -> Combo:
    """`combo` with the roles on its slices that give the most requests/s within the SLO at
    `lengths`.

    `combo` itself is returned if no other roles exceed its rate by the factor MIN_GAIN, or if it is
    not a pair of single-node instances.
    """
    if not _is_pair(combo):
        return combo
    best = combo
    for members in _other_roles(combo):
        name = combo_id(combo.model, members)
        found = evaluate_combo(name, cluster, service, lengths, profile, arrivals)
        if found.meets_slo and found.req_per_s > best.req_per_s:
            best = found
    return best if best.req_per_s > MIN_GAIN * combo.req_per_s else combo


def _is_pair(combo: Combo) -> bool:
    phases = {member.phase for member in combo.members}
    plain = all(not member.stage and not member.deployment for member in combo.members)
    return plain and phases == {Phase.PREFILL, Phase.DECODE}


def _other_roles(combo: Combo) -> Iterator[_Members]:
    """The members of other combos on the same slices: any ratio if all slices are equal, the other
    direction if there are two types."""
    slices = slices_of(combo)
    if len(slices) == 1:
        ((pool, gpus), count) = next(iter(slices.items()))
        for prefill in range(1, count):
            yield [
                (Phase.PREFILL, gpus, pool, prefill),
                (Phase.DECODE, gpus, pool, count - prefill),
            ]
    elif len(slices) == 2:
        for one, other in (sorted(slices), sorted(slices, reverse=True)):
            yield [
                (Phase.PREFILL, one[1], one[0], slices[one]),
                (Phase.DECODE, other[1], other[0], slices[other]),
            ]
