"""Replay a recorded span and compare the decisions byte for byte.

The replay of each span starts from its recorded state, so a difference in one span does not affect
the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from autoscaler.decide import ControllerState, Effect, Observation, decide
from autoscaler.domain.cluster import Cluster
from streams.decision_log.log_entries import decisions_of, digest
from streams.decision_log.log_reader import Gap, Segment, read_spans
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class TickDifference:
    """A tick whose replayed effects differ from the recorded ones.

    then, now: recorded and replayed decisions. If they are equal, only other records differ.
    """

    now_ms: int
    then: tuple[Decision, ...]
    now: tuple[Decision, ...]


@dataclass(slots=True)
class Rerun:
    """Result of a replay. first_ms, last_ms: times of the first and the last compared tick.
    differs: the first different tick of each span; later differences follow from it. versions:
    versions of Shoal that recorded the spans. gaps: ticks that could not be read, after which the
    replay continued from the next recorded state.
    """

    ticks: int = 0
    first_ms: int = 0
    last_ms: int = 0
    decisions: int = 0
    effects: int = 0
    differs: list[TickDifference] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether every tick has its recorded effects."""
        return not self.differs


@dataclass(frozen=True, slots=True)
class RepeatedTick:
    """One repeated tick: the states before and after it, its inputs and its effects."""

    before: ControllerState
    after: ControllerState
    observation: Observation
    cluster: Cluster
    now_ms: int
    effects: tuple[Effect, ...]


def unwatched(_: object) -> None:
    """Ignore a tick."""


def rerun(
    segments: Iterable[Segment],
    since_ms: int,
    until_ms: int,
    watch: Callable[[RepeatedTick], None] = unwatched,
) -> Rerun:
    """Repeat the decisions of the ticks in [since_ms, until_ms]. watch: called with each of these
    ticks."""
    found = Rerun()
    for span in read_spans(segments, found.gaps):
        state = span.start.state
        for tick in span.ticks:
            if tick.now_ms > until_ms:
                break
            found.versions.add(span.start.version)
            before = state
            state, effects = decide(before, tick.observation, tick.cluster, tick.now_ms)
            if tick.now_ms < since_ms:
                continue
            watch(RepeatedTick(before, state, tick.observation, tick.cluster, tick.now_ms, effects))
            found.ticks += 1
            found.first_ms = found.first_ms or tick.now_ms
            found.last_ms = tick.now_ms
            decisions = decisions_of(effects)
            found.decisions += len(decisions)
            found.effects += bool(effects)
            if digest(effects) != tick.digest or decisions != tick.decisions:
                found.differs.append(TickDifference(tick.now_ms, tick.decisions, decisions))
                break
    found.gaps = [gap for gap in found.gaps if gap.concerns(since_ms, until_ms)]
    return found
