"""Networks between pools: declared bandwidths, and whether they carry the KV of separate prefill.

Source: Cauchy sec. 5, eq. 17-18: a node must send the KV cache of a prompt at least as fast as
prefill produces it, so that computation hides the transfer.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.domain.cluster import Pool
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.engine_limits import KV_LINK_GB_PER_S
from autoscaler.performance.profile import Profile
from autoscaler.performance.step_times import step_times


def link_gb_s(one: Pool, other: Pool) -> float:
    """Bandwidth in 1e9 bytes/s from a GPU of one pool to a GPU of the other.

    The bandwidth inside a node is used only if both are the same pool of a single node; otherwise
    the two may be on different nodes. A pool that declares no network is assumed to have 200
    Gbit/s.
    """
    if _one_node(one, other):
        return one.gpu.interconnect_gb_s
    return min(pool.between_gb_s or KV_LINK_GB_PER_S for pool in (one, other))


def assumed_links(pools: Iterable[Pool]) -> tuple[str, ...]:
    """Pools of a prefill-decode pair that use a network between nodes but do not declare it, as
    region/name."""
    members = tuple(pools)
    if len(members) < 2 and all(_one_node(pool, pool) for pool in members):
        return ()
    return tuple(f"{pool.region}/{pool.name}" for pool in members if not pool.between_gb_s)


def _one_node(one: Pool, other: Pool) -> bool:
    return one.id == other.id and one.max_nodes == 1


def kv_transfer_keeps_up(
    gb_per_prompt: float,
    prefill: tuple[Pool, NodeSlice, float],
    decode: tuple[Pool, NodeSlice, float],
) -> bool:
    """Whether the network carries KV caches of `gb_per_prompt` (1e9 bytes) as fast as prefill
    produces them (eq. 18).

    prefill, decode: pool, slice and prompts/s of an instance. The instances on a node share its
    network. So a prefill node must send, and a decode node receive, the KV of as many instances as
    fit on it.
    """
    per_node = [_instances(pool, node) * rate for pool, node, rate in (prefill, decode)]
    return max(per_node) * gb_per_prompt <= link_gb_s(prefill[0], decode[0])


def most_prompts_per_s(
    spec: ModelSpec, node: NodeSlice, lengths: Lengths, profile: Profile
) -> float:
    """Prompts/s of a prefill instance on `node` at full speed, without regard to the SLO."""
    times = step_times(spec, node, Phase.PREFILL, profile)
    cached = lengths.prefix_hit * lengths.input_tokens
    return 1e3 / times.prefill_ms(lengths.input_tokens - cached, cached)


def _instances(pool: Pool, node: NodeSlice) -> int:
    return max(1, pool.per_node // node.gpus)
