"""Entries of the ledger: the leader's memory, which its successor continues from.

An entry holds one part of the controller's state as JSON text. `autoscaler.state.ledger` defines
the parts, because this layer does not know the state. The topic is compacted, so it holds the
latest entry of each part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from topics import checks
from topics.printable import printable, printable_json

KINDS = ("fleet", "model", "groups", "combos", "arrivals")
"""Parts: of the whole fleet, or of one model (its estimates and targets, its groups, its evaluated
combos, one hour of its arrivals)."""
MOST_CHARACTERS = 3_000_000
MOST_SLOTS = 72
_ENTRY: checks.FieldChecks = {
    "kind": partial(checks.one_of, allowed=KINDS),
    "leader_token": checks.count,
    "at_ms": checks.time_ms,
    "value": partial(checks.text, limit=MOST_CHARACTERS),
}


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One part of the leader's memory at `at_ms`.

    kind: Kind of the part. model: Model of the part, "" for the fleet. slot: Hour of the arrivals
    modulo 72, 0 for other kinds. value: The part as JSON text.
    """

    kind: str
    model: str
    leader_token: int
    at_ms: int
    value: str
    slot: int = 0

    def __post_init__(self) -> None:
        checks.fields(self, _ENTRY)
        if self.kind == "fleet":
            checks.one_of("model", self.model, ("",))
        else:
            checks.name("model", self.model)
        if not self.value.isprintable():
            object.__setattr__(self, "value", printable(printable_json(self.value)))
        checks.count("slot", self.slot, MOST_SLOTS - 1 if self.kind == "arrivals" else 0)

    @property
    def key(self) -> str:
        """The record's key. Keys of arrivals repeat after three days."""
        if self.kind == "arrivals":
            return f"{self.kind}/{self.model}/{self.slot}"
        return f"{self.kind}/{self.model}"

    @property
    def generation(self) -> int:
        """Order of the entries of one leader."""
        return self.at_ms


def keys_of(model: str) -> tuple[str, ...]:
    """The keys of all entries of `model`."""
    parts = (f"{kind}/{model}" for kind in KINDS if kind not in ("fleet", "arrivals"))
    return (*parts, *(f"arrivals/{model}/{slot}" for slot in range(MOST_SLOTS)))
