"""Bodies of the lines of a decision log, and the digest of effects.

start  version, controller, cluster, state
tick   seen (differences since the start, see `observation_diff`), cluster if it changed,
       effects (a digest, absent if there were none), decisions
end    empty
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.decide import ControllerState, Effect, Observation
from autoscaler.domain.cluster import Cluster
from autoscaler.state.effects import PublishDecision, PublishLedger
from topics.codec import write_value
from topics.decisions import Decision

_WHOLE_FLOAT = re.compile(rb"(\d)\.0(?=[],}])")


@dataclass(frozen=True, slots=True)
class Start:
    """The state before the next tick, from which a replay can start. version: version of Shoal."""

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
    byte for byte, except that 1 and 1.0 are equal in entries of the ledger.
    """
    said = hashlib.blake2b(digest_size=12)
    some = False
    for effect in effects:
        some = True
        (value,) = (getattr(effect, field.name) for field in dataclasses.fields(effect))
        text = write_value(value)
        if isinstance(effect, PublishLedger):
            # The state may hold 1 where a replay, which read the state from JSON, holds 1.0.
            text = _WHOLE_FLOAT.sub(rb"\1", text)
        said.update(type(effect).__name__.encode() + b" " + text + b"\n")
    return said.hexdigest() if some else ""


def decisions_of(effects: Iterable[Effect]) -> tuple[Decision, ...]:
    """The decisions among `effects`."""
    return tuple(effect.record for effect in effects if isinstance(effect, PublishDecision))
