"""Notices by which nodes and pods announce that pods must leave. Pure."""

from __future__ import annotations

import math

from executors.kubernetes.node_view import NodeView
from executors.kubernetes.pod_view import PodView

NOTICE_S = 90.0
"""Assumed seconds until reclaim if a notice states no time: the shortest notice of the large
clouds, 30 s for the node, to which engines add their own grace period."""


def notice_s(pod: PodView, node: NodeView | None) -> float | None:
    """Seconds of the notice to a pod from its begin on, None = no notice. Infinite: the node stays
    until its pods have left. node: that of the pod, None = unknown."""
    if pod.disruption or (node is not None and node.notice and not node.waits):
        return max(NOTICE_S, pod.grace_s)
    return math.inf if node is not None and node.notice else None
