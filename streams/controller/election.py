"""Who leads, as one controller sees it: claims and renewals read back, on a monotonic clock.

Owns the rules; all times are arguments, in monotonic seconds. Knows nothing of Kafka: `leadership`
reads and writes for it. The log itself elects: no consumer group, so it works the same on every
broker and nothing is left behind.

The highest claim leads. A leader's lease counts from when it sent the last renewal that it has
read back, so no claim stands before that renewal in the log. Others claim once they saw no
renewal for longer than a lease while they were reading, so two never lead at a time as long as
monotonic clocks run at about the same rate. Where that fails, the broker fences (see `outbox`).
Claims of several may cross on their way: the last one leads only when the others have said that
they stand by, or when their leases are over.

A claim can be lost with the topic, and executors that follow it refuse every lower token. They say
which one they follow, so whoever leads without having heard of it claims again, above it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics.leadership import MAX_BASE, Leadership, token_of

RENEW_S = 1.0
LEASE_S = 4.0
TAKEOVER_S = 5.0
WATCH_S = 1.6
"""A controller that has just started watches for longer than the time between two renewals."""

ABOVE_S = 10.0
"""Between claims of a leader above what executors follow: one that lies ends no more terms."""

MOST_FOLLOWED = 10**9
"""An executor that says more lies. One that says as much leaves room for claims above."""

_CURRENT_S = 3.0
_MOST_STEP_S = 0.5


@dataclass(slots=True)
class Election:
    """boot: id of this controller's life, on all its records. token: of its claim, once it was
    read back, 0 before. highest, leader: token and name of the highest claim. base: of the claims
    on the topic. offset: of the last record read. heard_renewal: whether the leader renewed since
    this controller watches. yielded: whether a later claim has just taken the seat, which others
    wait to hear from here. in_use: the highest believable token that an executor said it follows.
    What is only written on assignments or routes may be forged, and claiming above it would vouch
    for it."""

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

    def heard(self, record: Leadership, offset: int, age_s: float = 0.0) -> None:
        """A record of the topic, in order. age_s: real seconds since it was appended."""
        if offset < self.offset:
            # Whoever led must claim on the new topic; one that does not see it holds its lease yet.
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
            self.heard_renewal = self._checked_s is not None  # not one of the past
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
        """Who said `record` may lead for a lease from now."""
        if not ours:
            self._rivals[record.claim] = self._silent_s

    def followed(self, token: int) -> None:
        """An executor says that it follows the leader with `token`."""
        if token <= MOST_FOLLOWED:
            self.in_use = max(self.in_use, token)

    def _age_s(self, age_s: float) -> float:
        """By the broker's clock only while the past is read: once this controller watches, silence
        begins when a word is heard, however far that clock is set forward meanwhile."""
        return age_s if self._checked_s is None else 0.0

    def sent(self, kind: str, at_ms: int, now_s: float) -> None:
        """A record of this controller stamped `at_ms` is being sent. Who says that it stands by
        takes no seat by a claim that it has not read back: others may lead from then on."""
        if kind == "standby":
            self._sent_s.pop(self._claim_ms, None)
        self._claim_ms = at_ms if kind == "claim" else -1
        recent = self._sent_s.items()
        self._sent_s = {at: sent_s for at, sent_s in recent if now_s - sent_s < 2 * LEASE_S}
        self._sent_s[at_ms] = now_s

    def claiming(self, now_s: float) -> bool:
        """Whether a claim is on its way, so that nothing else may be said yet."""
        return now_s - self._sent_s.get(self._claim_ms, float("-inf")) < _CURRENT_S

    def watch(self, now_s: float) -> None:
        """Call often. Silence is heard only while the records of this controller are read back,
        and a process that was stopped in between has not listened meanwhile."""
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
        """Whether nobody leads (never anyone, one that resigned, or one that fell silent), or this
        controller does and executors refuse it."""
        if now_s >= self._current_until_s:
            return False
        if self.token:
            refused = self.leads(now_s) and self.in_use > self.token
            return refused and now_s - self._won_s >= ABOVE_S
        # Who has a claim that this controller has not heard may hold its lease yet.
        if self._vacant and self.in_use <= self.highest:
            return True
        return self._silent_s >= TAKEOVER_S and self._watched_s >= WATCH_S

    def give_up(self) -> None:
        """This controller does not lead any more, and watches as others do."""
        self.token, self.heard_renewal = 0, False

    def next_base(self) -> int:
        """The base of a claim made now, so that its token is higher than any in use."""
        known = min(max(self.highest, self.in_use), MAX_BASE)
        return self.base if self.base + self.offset + 2 > known else known

    def leads(self, now_s: float) -> bool:
        """Whether this controller may act now."""
        held = bool(self.token) and self.token == self.highest and now_s < self._lease_until_s
        return held and not self._rivals
