"""Signatures in record headers: a message authentication code (MAC) in a Kafka header.

A signature proves which principal signed the record (a node, a gateway, the operator, a
controller), for which topic and key, and when. The header holds a keyed BLAKE2b hash of 16 bytes
over all other parts, the signing time of 8 bytes (ms of the broker's clock), and the signer's name
if the signer is a node or gateway. Tombstones are signed too. Pure: time is an argument.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from topics.keys import SIGNER, Keys, Principal
from topics.signing import BODY_SIGNED_TOPICS, Refusal, body_refusal
from topics.topic_table import ASSIGNMENTS, TELEMETRY

HEADER = "shoal-mac"
MAX_SIGNATURE_AGE_MS = 900_000
"""Longest time from signing to the broker's append time. A record of a node, a gateway or a
controller that took longer is refused, because it may be a replayed copy."""
_MAC, _HEAD = 16, 24
_MOST_REMEMBERED, _MOST_NAME = 100_000, 200
_NAMED = (Principal.NODE, Principal.GATEWAY)
_ORDERED = (Principal.NODE, Principal.OPERATOR)
_NO_KEY = (1).to_bytes(5, "little")

Headers = Iterable[tuple[str, bytes]]


class Signer:
    """Signs the records that a process writes. gateway: the name under which telemetry is signed.

    now_ms: returns the estimated time of the broker's clock. Each record of a node or operator gets
    a later time than the last record with its key that this process signed or read, whatever the
    clock shows.
    """

    def __init__(self, keys: Keys, now_ms: Callable[[], int], gateway: str = "") -> None:
        self._keys = keys
        self._now_ms = now_ms
        self._gateway = gateway
        self._states: dict[tuple[str, str], tuple[Any, ...]] = {}
        self._last_ms: dict[tuple[str, bytes], int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def headers(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> list[tuple[str, bytes]]:
        """The signature header of a record of `topic` (a short name); value None is a tombstone.
        Empty if the topic is unsigned or no key is available."""
        principal = SIGNER.get(topic)
        if principal is None or not self._keys or (topic == ASSIGNMENTS.name and value is not None):
            return []  # no header: an assignment is signed in its body, only its deletion is not
        named = (key or b"").decode(errors="replace") if principal is Principal.NODE else ""
        signer = self._gateway if principal is Principal.GATEWAY else named
        states = self._states.get((topic, signer))
        if states is None:
            states = _states(self._keys, topic, signer)
            if value is not None:  # a deleted name needs no memory
                self._states[topic, signer] = states
        if not states:
            return []
        at_ms = self._now_ms()
        if principal in _ORDERED:
            place = topic, key or b""
            at_ms = self._last_ms[place] = max(at_ms, self._last_ms.get(place, 0) + 1)
            if value is None:
                del self._last_ms[place]
        tail = at_ms.to_bytes(8, "big") + signer.encode()
        return [(HEADER, _mac(states[0], tail, _signed_key(topic, key), value) + tail)]

    def on_record(self, topic: str, key: bytes | None, headers: Headers) -> None:
        """Note the signing time in `headers` of a verified record of `key` that was read from
        `topic`."""
        found = signature_header(headers)
        if found is not None:
            self.sign_after(topic, key, _signed_ms(found))

    def sign_after(self, topic: str, key: bytes | None, signed_ms: int) -> None:
        """Ensure that the next record of `key` gets a later signing time than `signed_ms`."""
        place = topic, key or b""
        self._last_ms[place] = max(self._last_ms.get(place, 0), signed_ms)


class Verifier:
    """Verifies the records that a process reads; without keys, all records are accepted.

    refused: number of refused records by topic and reason. rereads: whether the process may read a
    topic again from its beginning. If not, a record of a node or operator must be newer than the
    last record with its key.
    """

    def __init__(self, keys: Keys, rereads: bool = False) -> None:
        self._keys = keys
        self._rereads = rereads
        self._states: dict[tuple[str, bytes], tuple[Any, ...]] = {}
        self._gateways: dict[bytes, Any] = {}
        self._last_ms: dict[tuple[str, bytes], int] = {}
        self.refused: Counter[tuple[str, Refusal]] = Counter()

    def __bool__(self) -> bool:
        return bool(self._keys)

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers, append_ms: int
    ) -> Refusal | None:
        """The reason why a record of `topic` is refused; None if it is accepted. value None is a
        tombstone. The owner that the body names must be checked separately by `check_owner`."""
        principal = SIGNER.get(topic)
        if principal is None or not self._keys:
            return None
        if self._is_body_signed(topic, value):
            found = body_refusal(topic, value or b"", self._keys)
        else:
            found = self._check_header(topic, principal, key or b"", value, headers, append_ms)
        if found is not None:
            self.refused[topic, found] += 1
        return found

    def is_signed(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> bool:
        """Whether the signature of a record is valid, whatever its age and order. Nothing is
        counted or remembered."""
        principal = SIGNER.get(topic)
        if principal is None or not self._keys:
            return True
        if self._is_body_signed(topic, value):
            return body_refusal(topic, value or b"", self._keys) is None
        given = signature_header(headers)
        return not isinstance(self._fitting(topic, principal, key or b"", value, given), Refusal)

    def last_signed_ms(self, topic: str, key: bytes | None) -> int:
        """Signing time of the last accepted record of `key`; 0 if none was read."""
        return self._last_ms.get((topic, key or b""), 0)

    def check_owner(self, topic: str, signer: str, owner: str) -> Refusal | None:
        """A refusal if `owner` (the key or gateway in the body of a record of `topic`) differs from
        `signer` (the signer or Kafka key of the record); None if the two are equal."""
        if signer == owner or topic not in SIGNER or not self._keys:
            return None
        self.refused[topic, Refusal.MISADDRESSED] += 1
        return Refusal.MISADDRESSED

    def verify_telemetry(
        self, values: Sequence[bytes], headers: Sequence[Any], appended_ms: Sequence[int]
    ) -> tuple[list[bytes], dict[int, Refusal]]:
        """(signer of each record of `telemetry`, b"" if unsigned; refusals by index). The records
        are verified in one batch, because this topic has thousands of records per second.
        """
        if not self._keys or not values:
            return [b""] * len(values), {}
        states = self._gateways
        signers, given, made = [], [], []
        try:
            for value, ((_, header),) in zip(values, headers, strict=True):
                signer = header[_HEAD:]
                state = states[signer].copy()
                state.update(value)
                state.update(header[_MAC:])
                made.append(state.digest())
                given.append(header[:_HEAD])
                signers.append(signer)
            same = [one[:_MAC] for one in given]
            oldest = int.from_bytes(min([one[_MAC:] for one in given]), "big")
            fits = hmac.compare_digest(b"".join(same), b"".join(made))
            if fits and max(appended_ms) - oldest <= MAX_SIGNATURE_AGE_MS:
                return signers, {}
        except (KeyError, ValueError, TypeError):
            pass  # some are unsigned or from a new gateway: verify one by one below
        found = {}
        for at, (value, more, append_ms) in enumerate(
            zip(values, headers, appended_ms, strict=True)
        ):
            why = self.refusal(TELEMETRY.name, None, value, more or (), append_ms)
            if why is not None:
                found[at] = why
        return [(signature_header(more or ()) or b"")[_HEAD:] for more in headers], found

    def _check_header(
        self,
        topic: str,
        principal: Principal,
        key: bytes,
        value: bytes | None,
        headers: Headers,
        append_ms: int,
    ) -> Refusal | None:
        given = signature_header(headers)
        fit = self._fitting(topic, principal, key, value, given)
        if isinstance(fit, Refusal):
            return fit
        if fit is None or given is None:
            return None
        signer = given[_HEAD:]
        if value is not None and len(self._states) < _MOST_REMEMBERED:
            self._states.setdefault((topic, signer), self._states_of(topic, signer))
        if principal is Principal.GATEWAY and len(self._gateways) < _MOST_REMEMBERED:
            self._gateways[signer] = fit.copy()
            self._gateways[signer].update(_NO_KEY)
        at_ms = _signed_ms(given)
        if principal is not Principal.OPERATOR and append_ms - at_ms > MAX_SIGNATURE_AGE_MS:
            return Refusal.STALE
        if principal in _ORDERED and not self._rereads:
            if at_ms <= self._last_ms.get((topic, key), -1):
                return Refusal.REPLAYED
            self._last_ms[topic, key] = at_ms
            if value is None and principal is Principal.NODE:
                del self._last_ms[topic, key]  # only the age limits copies of a deleted node
            elif len(self._last_ms) > _MOST_REMEMBERED:
                del self._last_ms[next(iter(self._last_ms))]
        return None

    def _fitting(
        self,
        topic: str,
        principal: Principal,
        key: bytes,
        value: bytes | None,
        given: bytes | None,
    ) -> Any:
        """The hash state of the key that made the signature `given`; a Refusal if no key made it;
        None if the record is accepted unverified: unsigned during a migration, or this process has
        no key to verify it."""
        if given is None:
            return None if self._keys.unsigned_accepted else Refusal.UNSIGNED
        tail, signer = given[_MAC:], given[_HEAD:]
        if len(given) < _HEAD or len(signer) > _MOST_NAME or bool(signer) != (principal in _NAMED):
            return Refusal.WRONG
        if principal is Principal.NODE and signer != key:
            return Refusal.MISADDRESSED
        covered, states = _signed_key(topic, key), self._states_of(topic, signer)
        for state in states:
            if hmac.compare_digest(given[:_MAC], _mac(state, tail, covered, value)):
                return state
        return Refusal.WRONG if states else None

    def _states_of(self, topic: str, signer: bytes) -> tuple[Any, ...]:
        known = self._states.get((topic, signer))
        return known or _states(self._keys, topic, signer.decode(errors="replace"))

    def _is_body_signed(self, topic: str, value: bytes | None) -> bool:
        signed = topic in BODY_SIGNED_TOPICS and value is not None
        return signed and bool(self._keys.record_keys(topic, ""))


def signature_header(headers: Headers) -> bytes | None:
    """The signature among the headers of a record; None if there is none."""
    for name, value in headers:
        if name == HEADER:
            return value
    return None


def _signed_ms(header: bytes) -> int:
    return int.from_bytes(header[_MAC:_HEAD], "big")


def _signed_key(topic: str, key: bytes | None) -> bytes:
    # The body of a telemetry record names its model, so the key, which only selects a partition, is
    # not signed.
    return b"" if topic == TELEMETRY.name else key or b""


def _states(keys: Keys, topic: str, signer: str) -> tuple[Any, ...]:
    """Hash states initialised with the keys of `signer` for this topic, the signing key first. Each
    topic has its own key, so a signature is valid only for its topic."""
    label = f"shoal record\n{topic}".encode()
    return tuple(
        hashlib.blake2b(
            key=hmac.digest(secret.encode(), label, "sha256"), digest_size=_MAC, person=b"shoal"
        )
        for secret in keys.principal_keys(SIGNER[topic], signer)
    )


def _mac(state: Any, tail: bytes, key: bytes, value: bytes | None) -> bytes:
    """The MAC. Different records always give different hash input, because the key's length comes
    first and `tail` has a fixed length for all records of a signer. `Verifier.verify_telemetry`
    must hash the same input."""
    made = state.copy()
    made.update(bytes((value is not None,)) + len(key).to_bytes(4, "little") + key)
    made.update((value or b"") + tail)
    found: bytes = made.digest()
    return found
