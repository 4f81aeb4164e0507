"""Who leads: claims, renewals and resignations on the `leadership` topic.

Owns the meaning of these records and of a leader token. Knows nothing of JSON, topic names or what
anyone does with them. Times ending in `_ms` since the epoch are domain time (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks

KINDS = ("claim", "renewal", "resignation", "standby")
MAX_BASE = 10**11


@dataclass(frozen=True, slots=True)
class Leadership:
    """A controller's word on who leads.

    kind: "claim" to lead; "renewal" of the lease by the leader; "resignation" when it stops in
    order; "standby" of a controller that waits. claim: id of the claim (of the boot where there
    is none). base: of a claim, the highest token in use before this topic was created, 0 unless the
    topic was recreated. token: of a renewal or resignation, the token it speaks of.
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
    """The leader token that a record at `offset` of the topic speaks of; 0 if it speaks of none.

    The highest token leads. Readers refuse records with a lower one, and with a higher one that
    nobody has claimed. A renewal vouches for its token as the claim did, which may be lost: a
    reader that was cut off while the topic was made again goes on where it had been. The base
    keeps tokens rising when the topic was deleted and made again. No claim before `offset` can have
    given a token above MAX_BASE + offset: a record that speaks of one speaks of none.
    """
    if record.kind == "claim":
        return record.base + offset + 1
    return record.token if record.token <= MAX_BASE + offset else 0
