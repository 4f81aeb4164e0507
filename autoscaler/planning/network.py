"""Whether the network lets prefill and decode stand apart.

Owns the rule, from what pools declare. Knows nothing of how pairs are ranked.
Source: Cauchy sec. 5, eq. 17-18: the KV cache of a prompt must leave a node at least as fast as
prefill makes it, so that its transfer hides behind the computing.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.cluster import Pool
from autoscaler.domain.models import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S
from autoscaler.performance.profile import Profile
from autoscaler.performance.steps import step_times
from autoscaler.planning.parts import Part


def may_stand_apart(
    spec: ModelSpec, prefill: Part, decode: Part, lengths: Lengths, profile: Profile
) -> bool:
    """Whether `prefill` can hand its KV cache to `decode` as fast as it is made (eq. 18).

    A node may be full of such instances and they share its network, so what it needs is what all
    of them make together at full speed; a decode node must take in what its instances consume.
    """
    pool, node, _, _ = prefill.nodes[0]
    sink, sink_node, _, _ = decode.nodes[0]
    prompts_per_s = _most_prompts_per_s(spec, prefill, lengths, profile)
    makes = _instances(pool, node) * prompts_per_s
    takes = _instances(sink, sink_node) * decode.req_per_s
    gb_per_prompt = lengths.input_tokens * spec.kv_bytes_per_token / 1e9
    return max(makes, takes) * gb_per_prompt <= link_gb_s(pool, sink)


def link_gb_s(one: Pool, other: Pool) -> float:
    """Bandwidth in 1e9 bytes/s from a GPU of one pool to a GPU of the other.

    That inside of a node only where there is just one node: elsewhere nothing says that a pair
    lands on the same one. A pool that declares nothing is assumed to have 200 Gbit/s.
    """
    if _one_node(one, other):
        return one.gpu.interconnect_gb_s
    return min(pool.between_gb_s or KV_LINK_GB_PER_S for pool in (one, other))


def assumed(pools: Iterable[Pool]) -> tuple[str, ...]:
    """region/name of pools of one pair that declare no network between nodes but rest on it."""
    members = tuple(pools)
    if len(members) < 2 and all(_one_node(pool, pool) for pool in members):
        return ()
    return tuple(f"{pool.region}/{pool.name}" for pool in members if not pool.between_gb_s)


def _most_prompts_per_s(
    spec: ModelSpec, prefill: Part, lengths: Lengths, profile: Profile
) -> float:
    if len(prefill.nodes) > 1:
        return prefill.req_per_s
    times = step_times(spec, prefill.nodes[0][1], Phase.PREFILL, profile)
    return 1e3 / times.prefill_ms(lengths.input_tokens)


def _one_node(one: Pool, other: Pool) -> bool:
    return one.id == other.id and one.max_nodes == 1


def _instances(pool: Pool, node: NodeSlice) -> int:
    return max(1, pool.per_node // node.gpus)
