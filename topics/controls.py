"""Control records of operators: pause, freeze, release, approve, reject.

The topic has one partition, so the broker's order of the records decides between operators: of two
commands for the same version, the first one counts (`Control.replaces`). Every reader applies this
rule, so all controllers agree, whichever of them took the commands. Each command has a Kafka key of
its own, because compaction would otherwise remove the first one and keep the second.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from topics import checks

ROLLOUT_PAUSE, ROLLOUT_BACK = "rollout-pause", "rollout-back"
ROLLOUT_KINDS = (ROLLOUT_PAUSE, ROLLOUT_BACK)
CONTROL_KINDS = ("pause", "release", "verdict", "freeze", *ROLLOUT_KINDS)
ALL_MODELS = "*"


@dataclass(frozen=True, slots=True)
class Control:
    """One command of an operator, in force until a later version of the same subject.

    scope: A model, or "*" for all models. kind: "pause" (change nothing of the model), "freeze"
    (remove, move and exchange nothing), "release" (Shoal no longer manages the model),
    "rollout-pause" (begin no wave; its end also tries a refused version again), "rollout-back"
    (return to the former version) or "verdict" (on a proposal). active: For a verdict, whether it
    approves the proposal; for all other kinds, whether the command is in force. who: Name of the
    operator, from the token or the proxy. why: Reason, as free text. until_ms: End of a pause or
    freeze, 0 = no end; of an approval, time until which further changes are accepted. proposal,
    leader_token: Number and leader token of the decision to which a verdict refers. version: Number
    of this command among those of its subject; 0 = whatever came before.
    command_id: Random id of the command, the same if it is repeated.
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
    version: int = 0
    command_id: str = ""

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
        checks.count("version", self.version)
        if self.command_id:
            checks.name("command_id", self.command_id)

    @property
    def key(self) -> str:
        """The subject of the command; one command of a subject is in force."""
        if self.kind == "verdict":
            return verdict_key(self.leader_token, self.proposal)
        return f"{self.kind}/{self.scope}"

    @property
    def topic_key(self) -> str:
        """The record's Kafka key."""
        return f"{self.key}/{self.command_id}" if self.command_id else self.key

    def replaces(self, before: Control | None) -> bool:
        """Whether this command takes effect after `before`, the one of its subject in force.

        The first answer to a proposal is final. Otherwise the version must be above that of
        `before`; two commands that answer the same version have the same version of their own.
        """
        if before is None:
            return True
        if self.kind == "verdict" or self.command_id == before.command_id != "":
            return False
        return not self.version or self.version > before.version


def verdict_key(leader_token: int, proposal: int) -> str:
    """The subject of the answers to a proposal."""
    return f"verdict/{leader_token}.{proposal}"


def in_force_commands(records: Iterable[Control]) -> dict[str, Control]:
    """The command in force of each subject. records: commands in the order of their topic."""
    found: dict[str, Control] = {}
    for record in records:
        before = found.get(record.key)
        if record.replaces(before):
            version = record.version or (before.version + 1 if before is not None else 0)
            found[record.key] = replace(record, version=version)
    return found
