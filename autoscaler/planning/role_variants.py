"""What a running prefill-decode combo can become on the slices that it has, by changing roles.

Owns the other ratios of a combo. Candidates have the ratio with the cheapest request, which takes
other slices at other lengths: alone they would leave a full pool nothing to switch to.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Arrivals, Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.planning.candidate_combos import combo_named
from autoscaler.planning.combo_names import combo_id
from autoscaler.planning.combo_usage import slices_of

WORTH = 1.05
"""Times as many requests/s, from which on other roles are worth a switch: less comes and goes with
the lengths that are measured."""

_Members = list[tuple[Phase, int, str, int]]


def best_roles(
    combo: Combo,
    cluster: Cluster,
    service: Service,
    lengths: Lengths,
    profile: Profile,
    arrivals: Arrivals,
) -> Combo:
    """`combo` with those roles on its slices with which it does the most requests/s within the
    SLO, as valued at `lengths`; itself where no others do WORTH as much, and where it is no pair
    of instances on one node each."""
    if not _is_pair(combo):
        return combo
    best = combo
    for members in _other_roles(combo):
        name = combo_id(combo.model, members)
        found = combo_named(name, cluster, service, lengths, profile, arrivals)
        if found.meets_slo and found.req_per_s > best.req_per_s:
            best = found
    return best if best.req_per_s > WORTH * combo.req_per_s else combo


def _is_pair(combo: Combo) -> bool:
    phases = {member.phase for member in combo.members}
    plain = all(not member.stage and not member.deployment for member in combo.members)
    return plain and phases == {Phase.PREFILL, Phase.DECODE}


def _other_roles(combo: Combo) -> Iterator[_Members]:
    """Members of the same slices: any ratio on slices of one kind, the other direction on two."""
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
