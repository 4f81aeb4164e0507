"""What an answer of the planner is carried out on. Values only; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.targets.view import ModelView
from autoscaler.transitions.sight import Sight


@dataclass(frozen=True, slots=True)
class Scene:
    """What an answer is carried out on; everything here stays as it is meanwhile."""

    cluster: Cluster
    sight: Sight
    combos: Mapping[str, Combo]
    views: Mapping[str, ModelView]
    now_ms: int
