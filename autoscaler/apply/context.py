"""The context in which a plan answer or an approved proposal is applied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason, codes_of
from autoscaler.explain.text import joined
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.state.controller_state import ModelState
from autoscaler.state.model_view import ModelView
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class ChangeContext:
    """Cluster, fleet snapshot, combos and views at one moment; they stay the same while answers are
    applied."""

    cluster: Cluster
    sight: FleetSnapshot
    combos: Mapping[str, Combo]
    views: Mapping[str, ModelView]
    now_ms: int

    def decision(
        self,
        model: str,
        kind: str,
        why: Iterable[Reason],
        state: ModelState,
        applied: bool,
        usd_per_h: float = 0.0,
        over_since_ms: int = 0,
        change: tuple[tuple[str, int], ...] = (),
    ) -> Decision:
        """A decision about `model` for the reasons `why`, with the model's target and present
        capacity."""
        why = tuple(why)
        return Decision(
            number=0,
            leader_token=0,
            model=model,
            kind=kind,
            at_ms=self.now_ms,
            applied=applied,
            reason=joined(why),
            codes=codes_of(why),
            demand_req_per_s=round(state.target_req_per_s, 4),
            capacity_req_per_s=round(self.views[model].raw_req_per_s, 4),
            cost_delta_usd_per_h=round(usd_per_h, 4),
            over_since_ms=over_since_ms,
            change=change,
        )
