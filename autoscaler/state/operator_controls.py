"""Restrictions in effect now: pauses, releases, scheduled floors and freezes, and the controller's
own lag on topics.

A paused or released model is treated as in mode recommend: everything is computed and explained,
but nothing is changed. A frozen model keeps its instances, and may get more. Unread records do not
prove silence, so nothing is removed while the controller lags behind (`Observation.lag_ms`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.domain.reason import Reason
from autoscaler.state.decision_record import notice
from topics.controls import ALL_MODELS, ROLLOUT_KINDS, Control
from topics.decisions import Decision
from topics.reason_codes import ReasonCode
from topics.topic_table import DEMAND, STATUS, TELEMETRY

FROZEN_KIND = "frozen"
"""Kind of a freeze by an operator among `ActiveControls.reasons`; scheduled freeze windows have
another kind."""

LAG_KIND = "lag"
"""Kind of the controller's lag among `ActiveControls.reasons`; its scope is the whole cluster."""
_SILENT_TOPICS = (STATUS.name, TELEMETRY.name, DEMAND.name)
"""Topics on which silence counts as evidence."""

_LIFTED = {
    "pause": ReasonCode.RESUMED,
    "release": ReasonCode.MANAGED_AGAIN,
    FROZEN_KIND: ReasonCode.UNFROZEN,
    "undeclared": ReasonCode.DECLARED_AGAIN,
    ReasonCode.DRAIN_TOO_SHORT: ReasonCode.DRAIN_LONG_ENOUGH,
    LAG_KIND: ReasonCode.READER_CAUGHT_UP,
}

_CODES = {
    "pause": ReasonCode.PAUSED,
    "release": ReasonCode.RELEASED,
    "freeze": ReasonCode.FROZEN,
}
_NO_LAG: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class ActiveControls:
    """Restrictions at one moment. cluster: the declaration with the restrictions applied. frozen:
    by model, the reason why nothing may be removed. reasons: restrictions in effect, keyed
    `scope/kind` (`chat/pause`), reported when they change. stopped: scopes (models or "*") that are
    paused or released. advised: models declared in mode recommend."""

    cluster: Cluster
    frozen: Mapping[str, Reason] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    stopped: frozenset[str] = frozenset()
    advised: frozenset[str] = frozenset()

    def stops(self, model: str) -> bool:
        """Whether `model`, declared or not, is paused or released."""
        return ALL_MODELS in self.stopped or model in self.stopped


def active_controls(
    cluster: Cluster,
    controls: Mapping[str, Control],
    now_ms: int,
    lag_ms: Mapping[str, int] = _NO_LAG,
) -> ActiveControls:
    """The restrictions at `now_ms`. lag_ms: as in `Observation`."""
    held: dict[str, Reason] = {}
    late = topics_behind(lag_ms)
    if late:  # without figures, so that the reason changes only if the topics change
        held[f"{ALL_MODELS}/{LAG_KIND}"] = Reason(ReasonCode.READER_BEHIND, "*", late)
    stopped: set[str] = set()
    unread = cluster.services if late else ()
    frozen = {s.model: Reason(ReasonCode.UNREAD, s.model, late) for s in unread}
    for control in controls.values():
        if control.kind in ("verdict", *ROLLOUT_KINDS) or not control.active:
            continue
        if control.until_ms and now_ms >= control.until_ms:
            continue
        why = _reason(control)
        if control.kind == "freeze":
            held[f"{control.scope}/{FROZEN_KIND}"] = why
            for service in cluster.services:
                if control.scope in (ALL_MODELS, service.model):
                    frozen.setdefault(service.model, why)
            continue
        stopped.add(control.scope)
        held[f"{control.scope}/{control.kind}"] = why
    services = []
    for service in cluster.services:
        window = next((window for window in service.freezes if window.contains(now_ms)), None)
        if window is not None:
            model, names = service.model, (str(window),)
            frozen.setdefault(model, Reason(ReasonCode.FREEZE, model, names))
            held[f"{model}/freeze"] = Reason(ReasonCode.FREEZE_BEGAN, model, names)
        now = _with_floor(service, now_ms, held)
        if now.managed and (ALL_MODELS in stopped or now.model in stopped):
            now = replace(now, mode=Mode.RECOMMEND)
        services.append(now)
    if any(a is not b for a, b in zip(services, cluster.services, strict=True)):
        allowed = replace(cluster, services=tuple(services))
    else:
        allowed = cluster
    advised = frozenset(service.model for service in cluster.services if not service.managed)
    return ActiveControls(allowed, frozen, held, frozenset(stopped), advised)


def topics_behind(lag_ms: Mapping[str, int]) -> tuple[str, ...]:
    """Topics with lag on which silence would count as evidence."""
    return tuple(name for name in _SILENT_TOPICS if name in lag_ms)


def retained_notices(models: Collection[str], guarded: ActiveControls) -> dict[str, Reason]:
    """Reasons why groups of models that are no longer declared keep running, keyed as
    `ActiveControls.reasons`."""
    codes = {
        model: ReasonCode.HELD_RUNNING if guarded.stops(model) else ReasonCode.LEFT_RUNNING
        for model in sorted(models)
    }
    return {f"{model}/undeclared": Reason(code, model) for model, code in codes.items()}


def control_notices(
    before: Mapping[str, Reason], now: Mapping[str, Reason], now_ms: int
) -> list[Decision]:
    """One decision for each restriction that began or ended."""
    found = []
    for name, why in now.items():
        if before.get(name) != why:
            found.append(notice(name.rsplit("/", 1)[0], why, now_ms))
    for name in before:
        if name not in now:
            scope, kind = name.rsplit("/", 1)
            lifted = _LIFTED.get(kind)
            names = () if lifted else (kind,)
            why = Reason(lifted or ReasonCode.WINDOW_OVER, scope, names)
            found.append(notice(scope, why, now_ms))
    return found


def _reason(control: Control) -> Reason:
    return Reason(_CODES[control.kind], control.scope, (control.who,), quoted=control.why)


def _with_floor(service: Service, now_ms: int, held: dict[str, Reason]) -> Service:
    """`service` with the highest floor that is scheduled for now."""
    floors = [(least, window) for window, least in service.floors if window.contains(now_ms)]
    least, window = max(floors, key=lambda floor: floor[0], default=(0, None))
    if least <= service.min_instances:
        return service
    held[f"{service.model}/floor"] = Reason(
        ReasonCode.SCHEDULED_FLOOR, service.model, (str(window),), (least,)
    )
    return replace(service, min_instances=least)
