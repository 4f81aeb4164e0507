"""The lines of a decision log: what each says, and how effects are named.

Owns the keys. A segment of the log is a file of lines, the first a start, all others ticks:

    start  form, version, controller, at_ms, cluster, state
    tick   now_ms, seen (differences, see `observations`), cluster where it changed,
           effects (a digest, absent where there were none), decisions, billed and short
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.decide import ControllerState, Effect, Observation
from autoscaler.domain.cluster import Cluster
from autoscaler.state.effects import PublishDecision
from topics.codec import write_value
from topics.decisions import Decision

FORM = 2
"""Of the lines. 1 had reasons as sentences alone; what it holds cannot be decided again."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a segment begins: the state before its first tick. version: of Shoal."""

    version: str
    controller: str
    at_ms: int
    cluster: Cluster
    state: ControllerState


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick as it was. digest: of its effects, "" for none."""

    now_ms: int
    observation: Observation
    cluster: Cluster
    digest: str
    decisions: tuple[Decision, ...]


def digest(effects: Iterable[Effect]) -> str:
    """A name for `effects`, the same only where they are the same byte for byte; "" for none."""
    said = hashlib.blake2b(digest_size=12)
    some = False
    for effect in effects:
        some = True
        (value,) = (getattr(effect, field.name) for field in dataclasses.fields(effect))
        said.update(type(effect).__name__.encode() + b" " + write_value(value) + b"\n")
    return said.hexdigest() if some else ""


def decisions_of(effects: Iterable[Effect]) -> tuple[Decision, ...]:
    """The decisions among `effects`."""
    return tuple(effect.record for effect in effects if isinstance(effect, PublishDecision))
