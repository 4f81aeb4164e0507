"""Notices for people: what changed between two answers of a controller, worth a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoscaler.domain.condition_level import Level

_URGENT = {Level.AT_RISK, Level.BROKEN}


@dataclass(frozen=True, slots=True)
class Notice:
    """One message. model: "" if the notice concerns the controller. level: as in the status.
    ended: whether an earlier notice no longer holds. proposal: number of a proposal that waits, 0
    for none."""

    model: str
    level: str
    text: str
    ended: bool = False
    proposal: int = 0


@dataclass(slots=True)
class Notices:
    """Makes notices from successive states of a controller.

    A model that is at risk or broken for `after_s` seconds makes a notice, also if it changes
    between the two; a broken one that was at risk makes another one. Each proposal makes one. A
    controller that does not answer is a fault of its own: nothing is then known about the models.
    """

    after_s: float
    _levels: dict[str, Level] = field(default_factory=dict)
    _since: dict[str, tuple[bool, float]] = field(default_factory=dict)  # urgent or not, since when
    _proposals: dict[str, int] = field(default_factory=dict)

    def of_status(self, status: Mapping[str, Any], now_s: float) -> Iterator[Notice]:
        """Notices after the controller answered `status`; none of a standby except about itself."""
        unwell = str(status.get("unhealthy") or "")
        level = Level.BROKEN if unwell else Level.OK
        yield from self._level("", level, unwell or "the controller is well", now_s)
        if not status["leads"]:
            return
        models = {str(one["model"]): one for one in status["models"]}
        for name, model in models.items():
            yield from self._level(name, Level(model["level"]), model["word"], now_s)
            number = int(model["proposal"])
            if number and self._proposals.get(name) != number:
                text = f"proposal {number} waits: shoal approve {number}, or shoal reject {number}"
                yield Notice(name, model["level"], text, proposal=number)
            self._proposals[name] = number
        for gone in {*self._levels, *self._since, *self._proposals} - {*models, ""}:
            for kept in (self._levels, self._since, self._proposals):
                kept.pop(gone, None)

    def of_silence(self, why: str, now_s: float) -> Iterator[Notice]:
        """Notices after the controller did not answer, for the reason `why`."""
        yield from self._level("", Level.BROKEN, why, now_s)

    def _level(self, model: str, level: Level, text: str, now_s: float) -> Iterator[Notice]:
        is_urgent, last = level in _URGENT, self._levels.get(model, Level.OK)
        before, since_s = self._since.get(model, (None, now_s))
        if is_urgent is not before:
            since_s = now_s
            self._since[model] = is_urgent, since_s
        is_news = is_urgent != (last in _URGENT) or (is_urgent and level.urgency > last.urgency)
        if is_news and now_s - since_s >= self.after_s:
            self._levels[model] = level
            yield Notice(model, str(level), text, ended=not is_urgent)
