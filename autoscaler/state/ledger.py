"""The parts of the controller's state that outlive a leader, and their entries in the ledger.

A part that cannot be read is refused as a whole. Unknown fields are ignored, and a missing field
has its default, so that versions can follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from autoscaler.domain.cluster import Mode
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.estimate.forecast.history import MINUTES, Hour
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.supply import Supply
from autoscaler.state.controller_state import FullPlans, Numbers, ObservedFleet
from autoscaler.state.ledger_limits import check_fleet, check_model, check_tree, on_clock
from autoscaler.state.model_state import ModelState
from autoscaler.state.quality_state import SplitState
from topics.checks import InvalidValue, count, number
from topics.codec import read_value, write_value
from topics.ledger import LedgerEntry

_MOST_HOURS = 10_000_000


@dataclass(frozen=True, slots=True)
class FleetMemory:
    """Memory about the whole fleet. The fields are those of `ControllerState`. started_ms,
    listens_since_ms: see `Term`. full: without the lengths of each model."""

    started_ms: int
    listens_since_ms: int = 0
    observed: ObservedFleet = field(default_factory=ObservedFleet)
    controls: Mapping[str, Reason] = field(default_factory=dict)
    supply: Supply = field(default_factory=Supply)
    full: FullPlans = field(default_factory=FullPlans)
    splits: Mapping[str, SplitState] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory about one model.

    state: without the history of arrivals. basis: hash of the inputs of predictions, with which
    measured capacity and evaluated combos are valid. service: hash of the declaration; mode,
    min_instances: their values at the last tick, under operator controls and schedules. evaluated:
    demand for which the model's combos were evaluated. planned_lengths: lengths at the last request
    for a full plan.
    """

    state: ModelState
    basis: str = ""
    service: str = ""
    mode: Mode = Mode.RECOMMEND
    min_instances: int = 0
    evaluated: Demand | None = None
    planned_lengths: Lengths | None = None


@dataclass(frozen=True, slots=True)
class GroupsMemory:
    """The groups of one model. `placed` is empty if the assignments hold it: except during a role
    switch, and while a group waits for the GPUs of another one."""

    groups: tuple[ServingGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class CombosMemory:
    """The evaluated combos of one model."""

    combos: tuple[Combo, ...] = ()


@dataclass(frozen=True, slots=True)
class ArrivalsHour:
    """Arrivals of one model in each minute of an hour, UNKNOWN if a minute was not observed. hour:
    hours since the epoch."""

    hour: int
    arrivals: Hour


Part = FleetMemory | ModelMemory | GroupsMemory | CombosMemory | ArrivalsHour
_PARTS: Mapping[str, type[Any]] = {
    "fleet": FleetMemory,
    "model": ModelMemory,
    "groups": GroupsMemory,
    "combos": CombosMemory,
    "arrivals": ArrivalsHour,
}
_KINDS = {part: kind for kind, part in _PARTS.items()}


@dataclass(frozen=True, slots=True)
class Memory:
    """The readable parts of a ledger, by model. written_ms: time of the newest entry."""

    written_ms: int = 0
    fleet: FleetMemory | None = None
    models: Mapping[str, ModelMemory] = field(default_factory=dict)
    groups: Mapping[str, GroupsMemory] = field(default_factory=dict)
    combos: Mapping[str, CombosMemory] = field(default_factory=dict)
    arrivals: Mapping[str, tuple[ArrivalsHour, ...]] = field(default_factory=dict)


def write_part(model: str, part: Part, leader_token: int, now_ms: int) -> LedgerEntry:
    """The entry that holds `part` of `model` ("" for the fleet)."""
    slot = part.hour % 72 if isinstance(part, ArrivalsHour) else 0
    value = write_value(part).decode()
    return LedgerEntry(_KINDS[type(part)], model, leader_token, now_ms, value, slot)


def read_part(entry: LedgerEntry, now_ms: int | None = None) -> Part:
    """The part in `entry`. Raises InvalidValue if it cannot be read or has impossible values.

    now_ms: time of the reader's clock. If the entry is from its future, the writer's clock was
    ahead, and all times in it move by the difference.
    """
    try:
        tree = orjson.loads(entry.value)
    except orjson.JSONDecodeError as error:
        raise InvalidValue("value", entry.value[:40], f"JSON ({error})") from None
    try:
        check_tree(tree)
        if now_ms is not None:
            tree = on_clock(tree, max(0, entry.at_ms - now_ms), now_ms)
        part: Part = read_value(_PARTS[entry.kind], tree)
        _check(part, entry.model)
    except InvalidValue:
        raise
    except (ValueError, ArithmeticError, TypeError, RecursionError) as error:
        raise InvalidValue("value", f"{type(error).__name__}: {error}", "a valid part") from None
    return part


def read_ledger(entries: Iterable[LedgerEntry], now_ms: int) -> Memory:
    """The parts in `entries` on the clock `now_ms`. Unreadable entries are left out."""
    fleet: FleetMemory | None = None
    kept: dict[str, dict[str, Any]] = {kind: {} for kind in _PARTS}
    arrivals: dict[str, list[ArrivalsHour]] = {}
    written_ms = 0
    for entry in entries:
        try:
            part = read_part(entry, now_ms)
        except InvalidValue:
            continue
        written_ms = max(written_ms, min(entry.at_ms, now_ms))
        if isinstance(part, FleetMemory):
            fleet = part
        elif isinstance(part, ArrivalsHour):
            arrivals.setdefault(entry.model, []).append(part)
        else:
            kept[entry.kind][entry.model] = part
    return Memory(
        written_ms,
        fleet,
        kept["model"],
        kept["groups"],
        kept["combos"],
        {model: tuple(hours) for model, hours in arrivals.items()},
    )


def _check(part: Part, model: str) -> None:
    if isinstance(part, FleetMemory):
        backoff = part.observed.backoff
        check_fleet(part.supply, part.full, part.numbers, backoff, part.splits)
    elif isinstance(part, ModelMemory):
        check_model(part.state)
        count("min_instances", part.min_instances, 10**6)
        if part.evaluated is not None and part.evaluated.model != model:
            raise InvalidValue("evaluated.model", part.evaluated.model, model)
    elif isinstance(part, (GroupsMemory, CombosMemory)):
        named = part.groups if isinstance(part, GroupsMemory) else part.combos
        for one in named:
            if one.model != model:
                raise InvalidValue("model", one.model, model)
    else:
        number("hour", part.hour, 0, _MOST_HOURS)
        number("arrivals", len(part.arrivals), MINUTES, MINUTES)
        for arrived in part.arrivals:
            number("arrivals", arrived, -1, 10**9)
