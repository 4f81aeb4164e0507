"""Whether the network lets prefill and decode stand apart.

Owns the rule, from what pools declare. Knows nothing of how pairs are ranked.
Source: Cauchy sec. 5, eq. 17-18: the KV cache of a prompt must leave a node at least as fast as
prefill makes it, so that its transfer hides behind the computing.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Pool
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.performance.step_times import step_times
from autoscaler.planning.instance_options import Part
from autoscaler.planning.links import link_gb_s


def may_stand_apart(
    spec: ModelSpec, prefill: Part, prompts_per_s: float, decode: Part, lengths: Lengths
) -> bool:
    """Whether `prefill` can hand its KV cache to `decode` as fast as it is made (eq. 18).

    prompts_per_s: of `prefill`, at full speed. A node may be full of such instances and they share
    its network, so what it needs is what all of them make together; a decode node must take in
    what its instances consume.
    """
    pool, node, _, _ = prefill.nodes[0]
    sink, sink_node, _, _ = decode.nodes[0]
    makes = _instances(pool, node) * prompts_per_s
    takes = _instances(sink, sink_node) * decode.req_per_s
    gb_per_prompt = lengths.input_tokens * spec.kv_bytes_per_token / 1e9
    return max(makes, takes) * gb_per_prompt <= link_gb_s(pool, sink)


def most_prompts_per_s(spec: ModelSpec, prefill: Part, lengths: Lengths, profile: Profile) -> float:
    """Prompts/s of `prefill` at full speed, whatever its SLO."""
    if len(prefill.nodes) > 1:
        return prefill.req_per_s
    times = step_times(spec, prefill.nodes[0][1], Phase.PREFILL, profile)
    return 1e3 / times.prefill_ms(lengths.input_tokens)


def _instances(pool: Pool, node: NodeSlice) -> int:
    return max(1, pool.per_node // node.gpus)
