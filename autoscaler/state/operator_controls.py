"""What operators and schedules allow at this moment: pauses, released models, floors, freezes.

Owns the translation into modes, floors and reasons that the rest of a tick understands: a model
that is paused or released is decided upon as in mode recommend, so everything about it is still
computed and explained, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.planning.time_limits import DRAIN_TOO_SHORT
from autoscaler.state import reader_lag
from autoscaler.state.decision_record import hold
from topics.controls import EVERYTHING, Control
from topics.decisions import Decision

_LIFTED = {
    "pause": "resumed",
    "release": "managed by Shoal again",
    "undeclared": "declared again, or stopped as what is declared no longer",
    DRAIN_TOO_SHORT: "the drain time-out is long enough for its answers again",
    reader_lag.KIND: "this controller has caught up: silence counts again",
}

_NO_LAG: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Guards:
    """cluster: as it may be acted upon now. frozen: why nothing of a model may be removed now.
    held: what is in force, in words by scope and kind ("chat/pause"), to be said when it changes.
    stopped: scopes that are paused or released. advised: models declared in mode recommend.
    """

    cluster: Cluster
    frozen: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    advised: frozenset[str] = frozenset()

    def stops(self, model: str) -> bool:
        """Whether operators paused or released `model`, declared or not."""
        return EVERYTHING in self.stopped or model in self.stopped


def guards(
    cluster: Cluster,
    controls: Mapping[str, Control],
    now_ms: int,
    lag_ms: Mapping[str, int] = _NO_LAG,
) -> Guards:
    """What holds at `now_ms`. lag_ms: as in an observation."""
    held: dict[str, str] = {}
    behind = reader_lag.words(lag_ms)
    if behind:
        held[f"{EVERYTHING}/{reader_lag.KIND}"] = behind
    stopped: set[str] = set()
    for control in controls.values():
        if control.kind == "verdict" or not control.active:
            continue
        if control.until_ms and now_ms >= control.until_ms:
            continue
        stopped.add(control.scope)
        held[f"{control.scope}/{control.kind}"] = _words(control)
    frozen = reader_lag.frozen(lag_ms, cluster.services)
    services = []
    for service in cluster.services:
        window = next((window for window in service.freezes if window.holds(now_ms)), None)
        if window is not None:
            frozen.setdefault(service.model, f"freeze window {window}")
            held[f"{service.model}/freeze"] = f"freeze window {window} began; nothing is removed"
        now = _with_floor(service, now_ms, held)
        if now.managed and (EVERYTHING in stopped or now.model in stopped):
            now = replace(now, mode=Mode.RECOMMEND)
        services.append(now)
    if any(a is not b for a, b in zip(services, cluster.services, strict=True)):
        allowed = replace(cluster, services=tuple(services))
    else:
        allowed = cluster
    advised = frozenset(service.model for service in cluster.services if not service.managed)
    return Guards(allowed, frozen, held, frozenset(stopped), advised)


def left_alone(models: Collection[str], guarded: Guards) -> dict[str, str]:
    """What to say of models that run although they are declared no longer, as `Guards.held`."""
    how = {
        model: "once it is managed again"
        if guarded.stops(model)
        else "if it is declared in mode act and removed again"
        for model in models
    }
    runs = "declared no longer; what runs of it goes on, and is stopped"
    return {f"{model}/undeclared": f"{runs} {how[model]}" for model in sorted(models)}


def said(before: Mapping[str, str], now: Mapping[str, str], now_ms: int) -> list[Decision]:
    """What began and what ended, each once."""
    found = []
    for name, words in now.items():
        if before.get(name) != words:
            scope, kind = name.rsplit("/", 1)
            found.append(replace(hold(scope, words, now_ms), code=kind))
    for name in before:
        if name not in now:
            scope, kind = name.rsplit("/", 1)
            words = _LIFTED.get(kind, f"{kind} window is over")
            found.append(replace(hold(scope, words, now_ms), code=f"{kind}_over"))
    return found


def _words(control: Control) -> str:
    by = f" by {control.who}" if control.who else ""
    why = f": {control.why}" if control.why else ""
    what = "paused" if control.kind == "pause" else "released"
    effect = "nothing is changed" if control.kind == "pause" else "Shoal leaves it alone"
    return f"{what}{by}{why}; {effect}"


def _with_floor(service: Service, now_ms: int, held: dict[str, str]) -> Service:
    """`service` with the highest floor that is scheduled for now."""
    floors = [(least, window) for window, least in service.floors if window.holds(now_ms)]
    least, window = max(floors, key=lambda floor: floor[0], default=(0, None))
    if least <= service.min_instances:
        return service
    held[f"{service.model}/floor"] = f"scheduled floor of {least} ({window})"
    return replace(service, min_instances=least)
