"""Leader election over the `leadership` topic: claims and renewals on a monotonic clock.

All times are arguments, in monotonic seconds. `leadership` does the I/O. The order of the log
decides the election. No consumer group is needed, so the election works the same on every broker
and leaves no state behind.

The highest claim leads. A leader's lease begins at the send time of the last renewal that it has
read back. No other claim precedes that renewal in the log. A standby claims if it read the log for
longer than a lease and saw no renewal. Two controllers therefore never lead at the same time if
their monotonic clocks run at about the same rate; otherwise the broker fences one of them (see
`leader_producer`). If several claims cross, the last claimant leads only after the other claimants
have published a standby record, or after their leases end.

A claim can be lost together with the topic, and executors that follow the lost claim refuse every
lower token. Executors publish the token that they follow. A leader that has not read the claim of
such a token claims again with a higher token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.leadership import MAX_BASE, Leadership, token_of

RENEW_S = 1.0
LEASE_S = 4.0
TAKEOVER_S = 5.0
WATCH_S = 1.6
"""Minimum time that a newly started controller watches; longer than a renewal interval."""

ABOVE_S = 10.0
"""Minimum time between a leader's new claims above the tokens that executors follow.

So an executor with a false token can end only a limited number of terms.
"""

MOST_FOLLOWED = 10**9
"""Highest plausible token that an executor follows; higher tokens are ignored. It leaves room for
claims with higher tokens."""

_CURRENT_S = 3.0
_MOST_STEP_S = 0.5


@dataclass(slots=True)
class Election:
    """The state of this controller in the election. boot: id of this process, on all its records.
    token: token of this controller's claim after it is read back, 0 before. highest, leader: token
    and name of the highest claim. base: the highest base of a claim on the topic; a token is its
    claim's base plus an offset. offset: offset of the last record read. heard_renewal: whether the
    leader has renewed since this controller began to watch. yielded: whether a later claim has just
    replaced this controller's claim. The new claimant then waits for a standby record of this
    controller. in_use: the highest plausible token that an executor follows. Tokens that occur only
    on assignments or routes are ignored: they may be forged, and a claim above a forged token would
    make it valid."""

    boot: str
    token: int = 0
    highest: int = 0
    leader: str = ""
    base: int = 0
    offset: int = -1
    heard_renewal: bool = False
    yielded: bool = False
    in_use: int = 0
    _lease_until_s: float = float("-inf")
    _current_until_s: float = float("-inf")
    _silent_s: float = 0.0
    _watched_s: float = 0.0
    _checked_s: float | None = None
    _vacant: bool = True
    _won_s: float = float("-inf")
    _claim_ms: int = -1
    _sent_s: dict[int, float] = field(default_factory=dict)
    _rivals: dict[str, float] = field(default_factory=dict)

    def apply(self, record: Leadership, offset: int, age_s: float = 0.0) -> None:
        """Apply a record of the topic, in order. age_s: real seconds since the record was
        appended."""
        if offset < self.offset:
            # The topic was recreated: a leader must claim again. A leader that has not noticed
            # this still has its lease.
            self.token, self._vacant = 0, self._vacant or bool(self.token)
        self.offset = offset
        ours = record.claim == self.boot
        sent_s = self._sent_s.pop(record.at_ms, None) if ours else None
        if sent_s is not None:
            self._current_until_s = max(self._current_until_s, sent_s + _CURRENT_S)
        if record.kind == "claim":
            self._claimed(record, offset, age_s, sent_s)
        elif record.kind == "renewal" and token_of(record, offset) >= max(1, self.highest):
            self.highest, self.leader = record.token, record.controller
            self._vacant, self._silent_s = False, self._age_s(age_s)
            self._rival(record, ours)
            self.heard_renewal = self._checked_s is not None  # Old renewals do not count.
            if sent_s is not None and self.token == record.token:
                self._lease_until_s = max(self._lease_until_s, sent_s + LEASE_S)
        elif record.kind in ("standby", "resignation"):
            self._rivals.pop(record.claim, None)
            if record.kind == "resignation" and record.token == self.highest:
                self._vacant = True

    def _claimed(self, record: Leadership, offset: int, age_s: float, sent_s: float | None) -> None:
        token = token_of(record, offset)
        self.base = max(self.base, record.base)
        if token <= self.highest:
            return
        self.highest, self.leader = token, record.controller
        self._vacant, self._silent_s, self.heard_renewal = False, self._age_s(age_s), False
        self._rival(record, record.claim == self.boot)
        self.yielded, self.token = bool(self.token) and sent_s is None, 0
        if sent_s is not None:
            self.token, self._won_s, self._lease_until_s = token, sent_s, sent_s + LEASE_S

    def _rival(self, record: Leadership, ours: bool) -> None:
        """Record that the sender of `record` may lead for one lease from now, unless it is this
        controller.
        """
        if not ours:
            self._rivals[record.claim] = self._silent_s

    def followed(self, token: int) -> None:
        """Record that an executor follows the leader with `token`."""
        if token <= MOST_FOLLOWED:
            self.in_use = max(self.in_use, token)

    def _age_s(self, age_s: float) -> float:
        """Age of a record in real seconds.

        Before this controller watches, it is `age_s`, by the broker's clock. Afterwards it is 0:
        silence then begins when a record is read, even if the broker's clock jumps forward.
        """
        return age_s if self._checked_s is None else 0.0

    def sent(self, kind: str, at_ms: int, now_s: float) -> None:
        """Record that this controller sends a record stamped `at_ms`.

        A standby record cancels a claim that has not been read back, because other controllers may
        lead afterwards.
        """
        if kind == "standby":
            self._sent_s.pop(self._claim_ms, None)
        self._claim_ms = at_ms if kind == "claim" else -1
        recent = self._sent_s.items()
        self._sent_s = {at: sent_s for at, sent_s in recent if now_s - sent_s < 2 * LEASE_S}
        self._sent_s[at_ms] = now_s

    def claiming(self, now_s: float) -> bool:
        """Whether a claim is in flight, so that no other record may be sent yet."""
        return now_s - self._sent_s.get(self._claim_ms, float("-inf")) < _CURRENT_S

    def watch(self, now_s: float) -> None:
        """Advance the timers; call it often.

        Silence counts only while this controller reads back its own records. Time during which its
        process was suspended does not count.
        """
        step_s = 0.0 if self._checked_s is None else now_s - self._checked_s
        self._checked_s = now_s
        step_s = min(step_s, _MOST_STEP_S)
        rivals = {boot: silent_s + step_s for boot, silent_s in self._rivals.items()}
        self._rivals = {boot: silent_s for boot, silent_s in rivals.items() if silent_s < LEASE_S}
        if now_s >= self._current_until_s:
            self._silent_s = self._watched_s = 0.0
            return
        self._silent_s += step_s
        self._watched_s += step_s

    def may_claim(self, now_s: float) -> bool:
        """Whether this controller may claim.

        It may if no controller leads: no claim exists, the leader resigned, or the leader is
        silent. It may also if it leads itself and executors refuse its token.
        """
        if now_s >= self._current_until_s:
            return False
        if self.token:
            refused = self.leads(now_s) and self.in_use > self.token
            return refused and now_s - self._won_s >= ABOVE_S
        # Another controller, whose claim was not read here, may still have its lease.
        if self._vacant and self.in_use <= self.highest:
            return True
        return self._silent_s >= TAKEOVER_S and self._watched_s >= WATCH_S

    def give_up(self) -> None:
        """End this controller's leadership; it continues as a standby."""
        self.token, self.heard_renewal = 0, False

    def next_base(self) -> int:
        """Base for a claim made now, so that the token of the claim exceeds every token in use."""
        known = min(max(self.highest, self.in_use), MAX_BASE)
        return self.base if self.base + self.offset + 2 > known else known

    def leads(self, now_s: float) -> bool:
        """Whether this controller may act now."""
        held = bool(self.token) and self.token == self.highest and now_s < self._lease_until_s
        return held and not self._rivals
