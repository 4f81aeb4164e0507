"""Lines of a decision log, and the digest of effects.

A segment of the log is a file of lines. The first line is a start, all other lines are ticks:

   start  form, version, controller, at_ms, cluster, state
   tick   now_ms, seen (differences, see `observation_diff`), cluster if it changed,
          effects (a digest, absent if there were none), decisions, billed and short
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

FORM = 6
"""Version of the line format. Earlier versions held other values, so they cannot be replayed."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start of a segment: the state before its first tick. version: version of Shoal."""

    version: str
    controller: str
    at_ms: int
    cluster: Cluster
    state: ControllerState


@dataclass(frozen=True, slots=True)
class Tick:
    """One recorded tick. digest: digest of its effects, "" for none."""

    now_ms: int
    observation: Observation
    cluster: Cluster
    digest: str
    decisions: tuple[Decision, ...]


def digest(effects: Iterable[Effect]) -> str:
    """Digest of `effects`; "" for no effects. Digests are equal only for effects that are equal
    byte for byte.
    """
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
