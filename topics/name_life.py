"""The life of a name: of a model, node, pool, controller or operator command that is a key on a
compacted topic.

A name is declared, then withdrawn (no declaration has it, but instances or routes of it remain),
then finalized (nothing uses it, and the leader deletes its keys), and then gone. `TRANSITIONS`
states the evidence of each step. `KEYS` states for each compacted topic how long a key without an
owner stays. Nothing old returns: a declaration has a version, and `is_superseded` refuses every
version that is not above the last finalized one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class NameLife(StrEnum):
    """The stages of a name's life."""

    DECLARED = "declared"
    WITHDRAWN = "withdrawn"
    FINALIZED = "finalized"
    GONE = "gone"


TRANSITIONS: Mapping[tuple[NameLife, NameLife], str] = {
    (NameLife.GONE, NameLife.DECLARED): "a declaration with a version above every finalized one",
    (NameLife.DECLARED, NameLife.WITHDRAWN): "a withdrawal record, or a file without the name",
    (NameLife.WITHDRAWN, NameLife.DECLARED): "a declaration with a version above the withdrawal's",
    (NameLife.WITHDRAWN, NameLife.FINALIZED): "no instance, assignment or file refers to the name",
    (NameLife.FINALIZED, NameLife.DECLARED): "a declaration with a version above the withdrawal's",
    (NameLife.FINALIZED, NameLife.GONE): "the leader has deleted every key of the name",
}
"""The possible steps, with the evidence of each."""


def life_of(declared: bool, in_use: bool, has_keys: bool) -> NameLife:
    """The stage of a name. in_use: whether instances, drains or a configuration file refer to it.
    has_keys: whether a topic has a key of it."""
    if declared:
        return NameLife.DECLARED
    if in_use:
        return NameLife.WITHDRAWN
    return NameLife.FINALIZED if has_keys else NameLife.GONE


def is_superseded(version: int, finalized: int, listed: int | None) -> bool:
    """Whether a declaration of a name without a current record is old.

    finalized: the highest finalized version. listed: the version of this name that was in force
    when that version was finalized; None if the name was not declared then.
    """
    return version <= finalized and version != listed


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The owner of a key on a compacted topic, and when the leader deletes a key without an owner.

    owner: the names that own keys. silent_s: real seconds without a record until the deletion. It
    is long if a process may still write the key, so that the leader does not compete with it.
    """

    owner: str
    silent_s: float


_AT_ONCE_S, _QUIET_S, _HOUR_S = 2.0, 60.0, 3600.0

KEYS: Mapping[str, KeyRule] = {
    "assignments": KeyRule("a declared node, or a node with instances", _AT_ONCE_S),
    "routes": KeyRule("a declared model or service, or a model with instances", _AT_ONCE_S),
    "plans": KeyRule("the cluster", _AT_ONCE_S),
    "names": KeyRule("the declarations", _AT_ONCE_S),
    "ledger": KeyRule("a declared model, or the cluster", _QUIET_S),
    "services": KeyRule("a model with a declaration or a withdrawal", _QUIET_S),
    "controls": KeyRule("a command or answer that the controller keeps", _QUIET_S),
    "supply.availability": KeyRule("a declared pool", _QUIET_S),
    "supply.prices": KeyRule("a declared pool", _QUIET_S),
    "status": KeyRule("a declared node, or a node with an assignment", _QUIET_S),
    "leadership": KeyRule("the last claim, or a controller that runs", _HOUR_S),
}
"""By short topic name: every compacted topic."""
