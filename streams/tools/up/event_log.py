"""The events of a run as text, in order: decisions, lost instances, ended parts.

Pure: records and facts are input, lines are output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from autoscaler.domain.cluster import Pool
from streams.tools.up.placement_text import change_text
from topics.records import Decision, InstanceState, Status

_WORDS_ONLY = {"infeasible": "falls short", "hold": "unchanged", "rebuilt": "rebuilt"}


_MOST_EVENTS = 500


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log. at_ms: domain time. bad: whether it is a loss, or a demand or SLO that
    cannot be met. scripted: whether it is an event of the scenario. decision: whether it is a
    decision that changes the fleet or names unserved demand.
    """

    at_ms: int
    text: str
    bad: bool = False
    scripted: bool = False
    decision: bool = False

    def line(self, began_ms: int) -> str:
        """`+12:20 text`, in domain time since `began_ms`; `+12:20 EVENT: text` if scripted."""
        mark = "EVENT: " if self.scripted else ""
        return f"{clock(self.at_ms - began_ms)} {mark}{self.text}"


class Story:
    """The last events of a run, oldest first. count: number of all events so far."""

    def __init__(self) -> None:
        self._last: deque[Event] = deque(maxlen=_MOST_EVENTS)
        self.count = 0

    def __iter__(self) -> Iterator[Event]:
        return iter(self._last)

    def add(self, events: Iterable[Event]) -> None:
        """Add events, in order."""
        for event in events:
            self._last.append(event)
            self.count += 1

    def since(self, count: int) -> list[Event]:
        """The kept events after the first `count` of all."""
        new = min(self.count - count, len(self._last))
        return list(islice(self._last, len(self._last) - new, None))


def clock(elapsed_ms: float) -> str:
    """Domain time since the start of the run: "+12:20", "+1:02:20"."""
    seconds = max(0, int(elapsed_ms // 1000))
    minutes, hours = seconds // 60, seconds // 3600
    if hours:
        return f"+{hours}:{minutes % 60:02d}:{seconds % 60:02d}"
    return f"+{minutes:02d}:{seconds % 60:02d}"


def decided(decision: Decision, pools: Mapping[str, Pool]) -> Event:
    """The text of a decision: its change, reason, and cost or saving."""
    what = change_text(decision.change, pools)
    what = what or _WORDS_ONLY.get(decision.kind, decision.kind)
    if decision.change and decision.kind in ("replace", "replan"):
        what = f"{decision.kind} {what}"
    advice = not decision.applied and decision.kind not in _WORDS_ONLY
    applied = " (recommended, not applied)" if advice else ""
    if decision.expires_ms:
        applied = f" (#{decision.number} waits for approval)"
    who = f"{decision.model} {what}: " if decision.model != "*" else ""
    text = f"{who}{decision.reason}{applied}"
    unserved = decision.kind == "infeasible"
    return Event(decision.at_ms, text, unserved, decision=bool(decision.change) or unserved)


def losses(before: Status | None, after: Status) -> list[Event]:
    """Instances of a node that failed between the statuses `before` and `after`."""
    known = {one.instance: one for one in before.instances} if before else {}
    found = []
    for one in after.instances:
        last = known.get(one.instance, one)
        failed = one.state is InstanceState.FAILED and (
            last is one or last.state is not InstanceState.FAILED
        )
        if failed or one.restarts > last.restarts:
            why = f": {one.reason}" if one.reason else ""
            text = f"{one.model} lost an instance on {after.node}{why}"
            found.append(Event(after.at_ms, text, bad=True))
    return found
