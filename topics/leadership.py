"""Leader election: claims, renewals and resignations on the `leadership` topic.

Points in time (fields `..._ms`) are ms of domain time since the epoch (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks

KINDS = ("claim", "renewal", "resignation", "standby")
MAX_BASE = 10**11


@dataclass(frozen=True, slots=True)
class Leadership:
    """One leadership record of a controller.

    kind: "claim" (a controller wants to lead), "renewal" (the leader extends its lease),
    "resignation" (the leader stops in an orderly way) or "standby" (a controller waits). claim: Id
    of the claim, or id of the boot without a claim. base: In a claim, the highest token in use
    before this topic was created again; otherwise 0. token: In a renewal or resignation, the leader
    token of the sender.
    """

    controller: str
    claim: str
    kind: str
    at_ms: int
    base: int = 0
    token: int = 0

    def __post_init__(self) -> None:
        checks.name("controller", self.controller)
        checks.name("claim", self.claim)
        checks.one_of("kind", self.kind, KINDS)
        checks.time_ms("at_ms", self.at_ms)
        checks.count("base", self.base, MAX_BASE)
        checks.count("token", self.token)


def token_of(record: Leadership, offset: int) -> int:
    """The leader token of a record at `offset` of the topic; 0 if the record has none.

    The controller with the highest token leads. Readers refuse records with a lower token, and
    records with a higher token that no controller has claimed. A renewal proves its token as a
    claim does, because a reader misses a claim if the topic was recreated while the reader was
    disconnected. `base` keeps tokens rising after the topic was recreated. No claim before `offset`
    can have a token above MAX_BASE + offset. A renewal with a higher token is therefore forged, and
    its token counts as 0.
    """
    if record.kind == "claim":
        return record.base + offset + 1
    return record.token if record.token <= MAX_BASE + offset else 0
