"""Control records of operators: pause, freeze, release, approve, reject.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks

CONTROL_KINDS = ("pause", "release", "verdict", "freeze")
ALL_MODELS = "*"


@dataclass(frozen=True, slots=True)
class Control:
    """One command of an operator, in force until a later record with the same key.

    scope: A model, or "*" for all models. kind: "pause" (change nothing of the model), "freeze"
    (remove, move and exchange nothing), "release" (Shoal no longer manages the model) or "verdict"
    (on a proposal). active: For a verdict, whether it approves the proposal; for all other kinds,
    whether the command is in force. who: Operator, as free text. why: Reason, as free text.
    until_ms: End of a pause or freeze, 0 = no end. proposal, leader_token: Number and leader token
    of the decision to which a verdict refers.
    """

    scope: str
    kind: str
    active: bool
    who: str
    why: str
    at_ms: int
    until_ms: int = 0
    proposal: int = 0
    leader_token: int = 0

    def __post_init__(self) -> None:
        if self.scope != ALL_MODELS:
            checks.name("scope", self.scope)
        checks.one_of("kind", self.kind, CONTROL_KINDS)
        checks.free_text(self, "who", 200)
        checks.free_text(self, "why")
        checks.time_ms("at_ms", self.at_ms)
        checks.time_ms("until_ms", self.until_ms)
        checks.count("proposal", self.proposal)
        checks.count("leader_token", self.leader_token)

    @property
    def key(self) -> str:
        """The record's key; only the last record of a key is in force."""
        subject = str(self.proposal) if self.kind == "verdict" else self.scope
        return f"{self.kind}/{subject}"
