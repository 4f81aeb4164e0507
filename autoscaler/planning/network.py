"""Checks whether the network between two instances is fast enough to separate prefill and decode.

Source: Cauchy sec. 5, eq. 17-18: a node must send the KV cache of a prompt at least as fast as
prefill produces it, so that computation hides the transfer.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Pool
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance.profile import Profile
from autoscaler.performance.step_times import step_times
from autoscaler.planning.instance_options import InstanceOption
from autoscaler.planning.links import link_gb_s


def kv_transfer_keeps_up(
    spec: ModelSpec,
    prefill: InstanceOption,
    prompts_per_s: float,
    decode: InstanceOption,
    lengths: Lengths,
) -> bool:
    """Whether `prefill` can send its KV cache to `decode` as fast as it produces it (eq. 18).

    prompts_per_s: rate of `prefill` at full speed. The instances on a node share its network. So a
    prefill node must send, and a decode node receive, the KV of as many instances as fit on it.
    """
    pool, node, _, _ = prefill.nodes[0]
    sink, sink_node, _, _ = decode.nodes[0]
    makes = _instances(pool, node) * prompts_per_s
    takes = _instances(sink, sink_node) * decode.req_per_s
    gb_per_prompt = lengths.input_tokens * spec.kv_bytes_per_token / 1e9
    return max(makes, takes) * gb_per_prompt <= link_gb_s(pool, sink)


def most_prompts_per_s(
    spec: ModelSpec, prefill: InstanceOption, lengths: Lengths, profile: Profile
) -> float:
    """Prompts/s of `prefill` at full speed, without regard to the SLO."""
    if len(prefill.nodes) > 1:
        return prefill.req_per_s
    times = step_times(spec, prefill.nodes[0][1], Phase.PREFILL, profile)
    return 1e3 / times.prefill_ms(lengths.input_tokens)


def _instances(pool: Pool, node: NodeSlice) -> int:
    return max(1, pool.per_node // node.gpus)
