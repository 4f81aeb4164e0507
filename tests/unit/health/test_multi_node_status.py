"""`shoal status` shows the node of each rank of a gang."""

from __future__ import annotations

from autoscaler.domain.workload import Phase
from autoscaler.rollout.serving_group import Placed, ServingGroup
from streams.cli.status import gang_line
from streams.health.multi_node_status import gang_facts
from topics.fleet import InstanceState, ObservedInstance, Status
from topics.instance_ranks import GangRank, GangStage

STAGES = (GangStage("H100", 2, 50), GangStage("A10G", 1, 30))


def placed(rank: int, node: str) -> Placed:
    gpus = tuple(range(STAGES[rank].gpus))
    return Placed(f"i{rank}", Phase.AGGREGATED, node, "p", gpus, GangRank("i0", rank, STAGES))


def test_ranks_are_shown_in_order_with_node_and_state() -> None:
    alone = Placed("other", Phase.AGGREGATED, "n9", "p", (0,))
    groups = [
        ServingGroup("c:1", "chat", "c", "vllm", (placed(1, "n2"), placed(0, "n1")), 0),
        ServingGroup("d:1", "chat", "d", "vllm", (alone,), 0),
    ]
    failed = ObservedInstance(
        "i1", "chat", "aggregated", "c:1", InstanceState.FAILED, (0,), reason="rank 1 of 2: exit 1"
    )
    (gang,) = gang_facts(groups, {"n2": Status("n2", "p", "x", 1, 0, (failed,))})
    assert [rank["node"] for rank in gang["ranks"]] == ["n1", "n2"]
    assert gang_line(gang) == (
        "chat over 2 nodes: n1 2 x H100, 50 layers, not reported yet; "
        "n2 1 x A10G, 30 layers, failed (rank 1 of 2: exit 1)"
    )
