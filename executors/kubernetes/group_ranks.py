"""Mode `scale`: the ranks above 0 of instances over several nodes. Pure.

A replica of a LeaderWorkerSet is a group of pods on several nodes: the leader "NAME-2" and its
workers "NAME-2-1", "NAME-2-2". Rank 0 of an instance claims a replica by its leader; the other
ranks of the instance have the workers of this leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from executors.kubernetes.engine_pod import EnginePod, Wait
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scale_target import ScaleTarget
from topics.fleet import DesiredInstance, LaunchCode


def is_worker(engine: EnginePod) -> bool:
    """Whether `engine` is a rank above 0."""
    gang = engine.launch.desired.gang
    return gang is not None and not gang.leads


def nodes_of(desired: DesiredInstance) -> int:
    """The number of pods of the replica that an instance needs."""
    return desired.gang.size if desired.gang is not None else 1


def place_ranks(
    target: ScaleTarget, pods: Mapping[str, PodView]
) -> list[tuple[EnginePod, PodView]]:
    """Workers for the ranks that have another pod or none. Ends ranks whose rank 0 has ended."""
    found = []
    for rank in target.ranks:
        leader = leader_of(rank, target)
        if leader is None:
            rank.gone = True
        elif leader.pod:
            pod = pods.get(worker_name(leader, rank))
            if pod is not None and pod.name != rank.pod and not pod.terminating:
                found.append((rank, pod))
        if not rank.pod:
            rank.held_up = Wait(LaunchCode.NO_PODS, "the group of rank 0 has no pod for this rank")
    return found


def leader_of(rank: EnginePod, target: ScaleTarget) -> EnginePod | None:
    """The claim of rank 0 of the same instance, None if it has ended."""
    gang = rank.launch.desired.gang
    name = gang.gang if gang is not None else ""
    return next((one for one in target.claims if one.launch.desired.instance == name), None)


def worker_name(leader: EnginePod, rank: EnginePod) -> str:
    """The name of the worker of a leader for a rank."""
    gang = rank.launch.desired.gang
    return f"{leader.pod}-{gang.rank if gang is not None else 0}"


def with_group(leader: PodView, workers: list[PodView], size: int) -> PodView:
    """`leader`, Ready only if all `size` pods of its group are."""
    whole = len(workers) == size - 1 and all(one.serves for one in workers)
    return leader if whole or not leader.ready else replace(leader, ready=False)
