"""The calculation from the present rate to the needed capacity, with every margin, so that a person
can check it: the target is the highest proposal of the sizing rules, and the needed capacity is the
target divided by utilization and derating. docs/explanation/sizing.md explains the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.state.model_state import ModelState


@dataclass(frozen=True, slots=True)
class SizingSum:
    """The numbers from which the needed capacity of one model follows. present_req_per_s: the
    measured rate, None without data. target_req_per_s: the rate to serve, for the reason `cause`
    (None: no target has been set yet). utilization: planned share of capacity. derate: measured /
    planned capacity of instances."""

    present_req_per_s: float | None
    target_req_per_s: float
    cause: Reason | None
    utilization: float
    derate: float

    @property
    def headroom_req_per_s(self) -> float:
        """Part of the target above the measured rate, in requests/s; 0 without data."""
        return self.target_req_per_s - (self.present_req_per_s or self.target_req_per_s)

    @property
    def needed_req_per_s(self) -> float:
        """Predicted capacity that the target needs, in requests/s."""
        return self.target_req_per_s / (self.utilization * self.derate)


def sizing_sum(service: Service, state: ModelState, present_req_per_s: float | None) -> SizingSum:
    """The calculation for the present target of a model."""
    return SizingSum(
        present_req_per_s,
        state.target.req_per_s,
        state.target.why,
        service.utilization,
        state.capacity.derate,
    )
