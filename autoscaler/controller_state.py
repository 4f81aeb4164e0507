"""What the controller remembers from tick to tick, and what a tick is told.

Owns the values. Everything else is read off records: windows, statuses, tables.
Times are domain ms since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autoscaler.demand.observed import ModelDemand
from autoscaler.demand.peaks import Peaks
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from autoscaler.performance.profile import Profile, default_profile
from autoscaler.scaling.turns import Turns
from autoscaler.transitions.groups import Group
from topics.fleet import Assignment, Status
from topics.routing import Routes

if TYPE_CHECKING:  # it brings the solver with it, which the tick does not need
    from autoscaler.planning.tables import ModelTable


@dataclass(frozen=True, slots=True)
class Refinement:
    """The answer to RefinementRequested `request`. targets: (model, combo id, count), complete for
    every model in scope. timed_out: the solve did not end in time; nothing follows from it."""

    request: int
    targets: tuple[tuple[str, str, int], ...] = ()
    strategy: str = "joint"
    gap: float = -1.0
    shortfall_req_per_s: tuple[tuple[str, float], ...] = ()
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tick is told. demand: per model; statuses: latest per node.

    obtainable: pool id -> further nodes that can be had, where a feed says so (else all declared).
    tables, refinements: answers to earlier requests, each in one observation only.
    """

    demand: Mapping[str, ModelDemand] = field(default_factory=dict)
    statuses: Mapping[str, Status] = field(default_factory=dict)
    obtainable: Mapping[str, int] = field(default_factory=dict)
    tables: tuple[ModelTable, ...] = ()
    refinements: tuple[Refinement, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelState:
    """What is remembered of one model.

    lengths: planned at (wanted; tables may lag). last_action_ms: t_last of Algorithm 1, 0 = never.
    last_added_req_per_s: planned capacity that action added. over_since_ms: first second over the
    threshold, 0 = not over. excess_since_ms: since when there is excess, 0 = none. peaks: highest
    demand while there is excess. turns: reversals of the last hour. blocked_until_ms: nothing
    could be had; not tried before. stable_since_ms: last scaling or refinement, or when demand
    last left steady_req_per_s, the rate it has kept to since. no_data / said_no_data: telemetry
    stopped, and a decision says so. broken_ms: when capacity was lost that is not replaced yet.
    told_ms: when it was last said that nothing can be had. recommended / recommended_ms: what was
    last only recommended, and when.
    """

    lengths: Lengths
    lengths_ms: int = 0
    last_action_ms: int = 0
    last_added_req_per_s: float = 0.0
    over_since_ms: int = 0
    excess_since_ms: int = 0
    peaks: Peaks = ()
    turns: Turns = field(default_factory=Turns)
    blocked_until_ms: int = 0
    stable_since_ms: int = 0
    steady_req_per_s: float = 0.0
    no_data: bool = False
    said_no_data: bool = False
    broken_ms: int = 0
    told_ms: int = 0
    recommended: tuple[tuple[str, int], ...] = ()
    recommended_ms: int = 0


@dataclass(frozen=True, slots=True)
class Scarcity:
    """A pool that is left alone until `until_ms`, after `strikes` failed starts in a row."""

    until_ms: int
    strikes: int


@dataclass(frozen=True, slots=True)
class ControllerState:
    """All that the controller remembers. `assignments` and `routes` are the latest it published:
    an edge may write them again at any time.

    combos: what is known of combos that run or may be chosen, at the tables' lengths.
    """

    started_ms: int
    leader_token: int = 0
    profile: Profile = field(default_factory=default_profile)
    groups: tuple[Group, ...] = ()
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    routes: Mapping[str, Routes] = field(default_factory=dict)
    models: Mapping[str, ModelState] = field(default_factory=dict)
    tables: Mapping[str, ModelTable] = field(default_factory=dict)
    combos: Mapping[str, Combo] = field(default_factory=dict)
    scarce: Mapping[str, Scarcity] = field(default_factory=dict)
    next_serial: int = 1
    decision_number: int = 0
    plan_number: int = 0
    tables_asked_ms: int = 0
    refinement_request: int = 0
    refinement_asked_ms: int = 0
    refined_ms: int = 0
    announce: str = ""
