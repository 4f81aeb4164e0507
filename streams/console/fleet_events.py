"""Events other than decisions: commands of people, changed verdicts, lost nodes, alerts and notes.

The rows have the form of decisions, so that the page lists both in one order of time. They are
computed from the state, so a new leader knows the commands in force and no earlier verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from autoscaler.domain.condition_level import Level
from autoscaler.explain.combo_labels import pool_words
from autoscaler.tick.status import ModelStatus
from streams.operator_commands import done_words
from topics.alerts import Alert
from topics.controls import ALL_MODELS, Control
from topics.fleet import NO_DEADLINE_MS, Status

Row = dict[str, Any]

EVENT = "e"
"""In place of a leader's token in the key of a row."""
_URGENT = {Level.BROKEN, Level.AT_RISK}


class FleetEvents:
    """Finds what changed since the last call of each method."""

    def __init__(self) -> None:
        self._commands: dict[str, Control] = {}
        self._levels: dict[str, Level] = {}
        self._lost: frozenset[str] | None = None
        self._reclaimed: frozenset[str] | None = None

    def commands(self, controls: dict[str, Control]) -> Iterator[Row]:
        """One row for each command that came since the last call. controls: the commands in force
        by subject, newest last."""
        fresh: list[Control] = []
        for key in reversed(controls):
            if self._commands.get(key) is controls[key]:
                break
            fresh.append(controls[key])
        if fresh:
            self._commands = dict(controls)
        return (_command(control) for control in reversed(fresh))

    def verdicts(self, models: Iterable[ModelStatus], now_ms: int) -> Iterator[Row]:
        """One row for each model that became broken, at risk, or well again."""
        for model in models:
            level, before = Level(model.level), self._levels.get(model.model, Level.OK)
            self._levels[model.model] = level
            if level is before or not {level, before} & _URGENT:
                continue
            kind = str(level) if level in _URGENT else "recovered"
            yield _row(kind, now_ms, model.model, model.word, model.conditions)

    def losses(self, lost: frozenset[str], pools: Mapping[str, str], now_ms: int) -> Iterator[Row]:
        """One row for each pool whose nodes were lost. pools: pool of each known node."""
        before, self._lost = self._lost, lost
        if before is not None:
            yield from _by_pool(lost - before, pools, "lost", now_ms)

    def reclaims(self, statuses: Mapping[str, Status], now_ms: int) -> Iterator[Row]:
        """One row for each pool whose nodes got a notice that the cloud takes them back, or that
        they must be emptied."""
        noticed = frozenset(node for node, one in statuses.items() if one.reclaim_ms)
        before, self._reclaimed = self._reclaimed, noticed
        if before is not None:
            pools = {node: statuses[node].pool for node in noticed}
            new = noticed - before
            waits = {node for node in new if statuses[node].reclaim_ms == NO_DEADLINE_MS}
            yield from _by_pool(new - waits, pools, "reclaimed by the cloud", now_ms)
            yield from _by_pool(waits, pools, "emptied for maintenance", now_ms)


def _by_pool(
    nodes: Collection[str], pools: Mapping[str, str], what: str, now_ms: int
) -> Iterator[Row]:
    """A row for each pool of `nodes`. what: what happens to them."""
    counts = Counter(pools.get(node, "") for node in nodes)
    for pool, count in sorted(counts.items()):
        where = f" of {pool_words(pool)}" if pool else ""
        names = sorted(node for node in nodes if pools.get(node, "") == pool)
        said = f"{count} nodes{where} are {what}" if count > 1 else f"{names[0]}{where} is {what}"
        yield _row("lost", now_ms, ALL_MODELS, said, subject=f"{pool}-{what[:4]}")


def alert_row(alert: Alert, now_ms: int) -> Row:
    """The row of an alert that the controller received."""
    model = alert.models[0] if len(alert.models) == 1 else ALL_MODELS
    more = f" of {', '.join(alert.models)}" if len(alert.models) > 1 else ""
    said = f"alert {alert.name}{more}: {alert.state}"
    return _row("alert", now_ms, model, said, subject=f"{alert.fingerprint}-{alert.state}")


def note_row(at_ms: int, model: str, who: str, text: str) -> Row:
    """The row of a note. who: name of the operator."""
    return _row("note", at_ms, model, f"{who}: {text}", subject=f"{model}-{text[:40]}")


def _command(control: Control) -> Row:
    number = f" #{control.proposal}" if control.proposal else ""
    why = f": {control.why}" if control.why else ""
    said = f"{control.who or 'an operator'}, {done_words(control)}{number}{why}"
    return _row("command", control.at_ms, control.scope, said, subject=control.key)


def _row(
    kind: str,
    at_ms: int,
    model: str,
    reason: str,
    codes: Collection[str] = (),
    subject: str = "",
) -> Row:
    return {
        "token": EVENT,
        "n": f"{kind}-{at_ms}-{subject or model}",
        "model": model,
        "kind": kind,
        "at": at_ms,
        "reason": reason,
        "codes": list(codes),
        "change": [],
    }
