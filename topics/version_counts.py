"""Counts of requests by version, which gateways report while two versions of a model are compared.

They are entries of `Telemetry.sent` with the kind "version:VERSION:FIELD", so that they add up over
gateways and seconds like all requests by kind. Logarithms are buckets of `topics.sketch`, counted
from its lowest one: the difference of two means is the logarithm of a ratio, in steps of 4%.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from topics.sketch import GAMMA, LOWEST, bucket_of

_PREFIX = "version:"
_ALL = "all"


@dataclass(frozen=True, slots=True)
class VersionCounts:
    """Counts of one version.

    completed, failed: answers, and attempts that ended with a fault of the engine. timed, ttft_log:
    answers with a known time of the first token, and the sum of the logarithms of these times.
    decoded, tpot_log: answers with a time per token, and the sum of their logarithms. tokens_log:
    sum of the logarithms of the answers' lengths. input_tokens, output_tokens: of answers.
    """

    completed: int = 0
    failed: int = 0
    timed: int = 0
    ttft_log: int = 0
    decoded: int = 0
    tpot_log: int = 0
    tokens_log: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: VersionCounts) -> VersionCounts:
        return VersionCounts(*(getattr(self, key) + getattr(other, key) for key in _FIELDS))

    @property
    def ended(self) -> int:
        """Answers and failed attempts."""
        return self.completed + self.failed


_FIELDS = tuple(field.name for field in fields(VersionCounts))
SentTo = dict[str, dict[str, int]]
"""The value of `Telemetry.sent`."""


def count_failure(sent: SentTo, version: str) -> None:
    """Count an attempt at an instance of `version` that the engine failed."""
    _add(sent, version, "failed", 1)


def count_answer(
    sent: SentTo,
    version: str,
    first_ms: float | None,
    last_ms: float,
    input_tokens: int,
    output_tokens: int,
) -> None:
    """Count an answer of `version`. Times are in ms since the request arrived; first_ms None: the
    time of the first token is unknown."""
    _add(sent, version, "completed", 1)
    _add(sent, version, "tokens_log", _log(output_tokens))
    _add(sent, version, "input_tokens", input_tokens)
    _add(sent, version, "output_tokens", output_tokens)
    if first_ms is None:
        return
    _add(sent, version, "timed", 1)
    _add(sent, version, "ttft_log", _log(first_ms))
    if output_tokens > 1:
        _add(sent, version, "decoded", 1)
        _add(sent, version, "tpot_log", _log((last_ms - first_ms) / (output_tokens - 1)))


def log_ratio(log_sum: float, count: int, other_sum: float, other_count: int) -> float:
    """The natural logarithm of the ratio of two geometric means, given as sums of logarithms over
    counts above 0."""
    return (log_sum / count - other_sum / other_count) * math.log(GAMMA)


def mean_of(log_sum: float, count: int) -> float:
    """The geometric mean of `count` values, above 0, with this sum of logarithms."""
    return math.exp((log_sum / count + LOWEST - 0.5) * math.log(GAMMA))


def is_version_kind(kind: str) -> bool:
    """Whether a kind of `Telemetry.sent` holds counts by version."""
    return kind.startswith(_PREFIX)


def read_counts(kinds: Iterable[tuple[str, int]]) -> dict[str, VersionCounts]:
    """The counts by version in `kinds`, (kind, number) pairs. Unknown fields are left out."""
    found: dict[str, dict[str, int]] = {}
    for kind, number in kinds:
        prefix, _, rest = kind.partition(":")
        version, _, field = rest.rpartition(":")
        if prefix + ":" == _PREFIX and version and field in _FIELDS:
            of = found.setdefault(version, {})
            of[field] = of.get(field, 0) + number
    return {version: VersionCounts(**of) for version, of in found.items()}


def merged(parts: Iterable[Mapping[str, VersionCounts]]) -> dict[str, VersionCounts]:
    """The sums of `parts` by version."""
    total: dict[str, VersionCounts] = {}
    for part in parts:
        for version, counts in part.items():
            total[version] = total.get(version, VersionCounts()) + counts
    return total


def _log(value: float) -> int:
    return bucket_of(value) - LOWEST


def _add(sent: SentTo, version: str, field: str, number: int) -> None:
    if number:
        ways = sent.setdefault(f"{_PREFIX}{version}:{field}", {})
        ways[_ALL] = ways.get(_ALL, 0) + number
