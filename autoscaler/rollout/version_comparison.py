"""Compares a new version with the former one, by requests that both serve at the same time.

A trial is a pair of batches: the requests that both versions ended in one span of time, which lasts
until each has `BATCH` answers. So load, prompts and time of day are those of the same minutes. Each
property has two sign tests: one proves that the new version is worse than a small margin, the other
that it is not worse than a larger one.

Trials whose load or prompts differ decide only in the direction that the difference cannot explain.
Versions on equal combos are compared directly, others relative to their predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoscaler.domain.combo import Combo
from autoscaler.domain.token_times import TokenTimes, pooled
from autoscaler.estimate.arrival_counts import BLOCK_S
from autoscaler.estimate.request_kinds import VersionBlock
from autoscaler.estimate.sequential_sign_test import SignTest
from topics.version_counts import VersionCounts, log_ratio, mean_of

LEVEL = 0.01
"""Most probable share of equal versions that all tests together ever call worse, and of versions
beyond the larger margin that a test ever calls fit."""
BATCH = 20
"""Answers of each version in a pair of batches."""
_WORSE, _FIT = math.log(1.1), math.log(1.2)
"""Margins of latencies and lengths: ratios of 1.1 and 1.2."""
_MORE_ERRORS = 0.01, 0.05
"""Margins of the share of failed requests."""
_COMPARABLE = 1.5
"""Ratio of loads, or of mean prompts, up to which two batches are alike."""
_NONE = VersionCounts()
_NO_TRIALS = SignTest()
METRICS = {
    "errors": ("errors",),
    "ttft": ("ttft",),
    "tpot": ("tpot",),
    "tokens": ("longer", "shorter"),
}
"""The tested properties for each declared one."""


@dataclass(frozen=True, slots=True)
class Arm:
    """The instances of one version that are compared: their combos."""

    combos: tuple[Combo, ...]

    @property
    def req_per_s(self) -> float:
        """Their capacity."""
        return sum(combo.req_per_s for combo in self.combos)

    @property
    def times(self) -> TokenTimes | None:
        """Their predicted times per token."""
        parts = [(one.req_per_s, one.token_times) for one in self.combos]
        timed = [(rate, times) for rate, times in parts if times is not None]
        return pooled(timed) if len(timed) == len(parts) else None

    def mean(self, name: str) -> float:
        """Mean predicted value of a latency of combos, by capacity."""
        total = sum(one.req_per_s * float(getattr(one, name)) for one in self.combos)
        return max(total / max(self.req_per_s, 1e-9), 1e-9)


@dataclass(frozen=True, slots=True)
class Pair:
    """Counts of both versions in the same `seconds`."""

    new: VersionCounts = _NONE
    old: VersionCounts = _NONE
    seconds: int = 0

    def __add__(self, other: Pair) -> Pair:
        seconds = self.seconds + other.seconds
        return Pair(self.new + other.new, self.old + other.old, seconds)


NO_PAIR = Pair()


@dataclass(frozen=True, slots=True)
class Metric:
    """The tests of one property. worse: trials in which the new version is worse. fit: trials in
    which it is not worse than the larger margin."""

    name: str
    worse: SignTest = _NO_TRIALS
    fit: SignTest = _NO_TRIALS


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """The evidence so far.

    began_ms: time since which requests are compared, 0 before. serves_ms: time since which an
    instance of the new version serves, 0 = none does. counted_ms: end of the last block that was
    counted. kept: name of a group that stays only for the comparison. pair, errors: requests of the
    present trials, of failures in `errors`. total: all requests. ratios: number, sum and sum of
    squares of the logarithms of the ratio of times per token.
    """

    began_ms: int = 0
    serves_ms: int = 0
    counted_ms: int = 0
    kept: str = ""
    metrics: tuple[Metric, ...] = ()
    pair: Pair = NO_PAIR
    errors: Pair = NO_PAIR
    total: Pair = NO_PAIR
    ratios: tuple[int, float, float] = (0, 0.0, 0.0)

    @property
    def level(self) -> float:
        """The level of each test, so that all of them together keep `LEVEL`."""
        return LEVEL / max(1, len(self.metrics))

    @property
    def worst(self) -> Metric | None:
        """The property in which the new version is proven to be worse; None if there is none."""
        return next((one for one in self.metrics if one.worse.rejects(self.level)), None)

    @property
    def is_fit(self) -> bool:
        """Whether the new version is proven to be fit in every property."""
        return bool(self.metrics) and all(one.fit.rejects(LEVEL) for one in self.metrics)

    @property
    def speed(self) -> float:
        """The speed of the new version relative to the former one, by its time per token: the end
        nearer to 1 of an interval of two standard errors."""
        count, total, squares = self.ratios
        if count < 2:
            return 1.0
        mean = total / count
        spread = math.sqrt(max(0.0, squares - count * mean * mean) / (count - 1) / count)
        return math.exp(-math.copysign(max(0.0, abs(mean) - 2.0 * spread), mean))


def begun(compare: Sequence[str]) -> VersionComparison:
    """A comparison without evidence, of the declared properties."""
    names = [name for one in compare for name in METRICS[one]]
    return VersionComparison(metrics=tuple(map(Metric, names)))


def with_blocks(
    known: VersionComparison,
    blocks: Iterable[VersionBlock],
    new: str,
    old: str,
    arms: tuple[Arm, Arm],
) -> VersionComparison:
    """`known` with the later ones of `blocks`. new, old: the versions; arms: their instances."""
    for block in blocks:
        if block.end_ms - BLOCK_S * 1000 < known.counted_ms:
            continue
        seen = Pair(block.counts.get(new, _NONE), block.counts.get(old, _NONE), BLOCK_S)
        known = replace(
            known,
            counted_ms=block.end_ms,
            pair=known.pair + seen,
            errors=known.errors + seen,
            total=known.total + seen,
        )
        known = _with_errors(known)
        if min(known.pair.new.completed, known.pair.old.completed) >= BATCH:
            known = replace(_with_trial(known, arms), pair=NO_PAIR)
    return known


def value_of(metric: str, counts: VersionCounts) -> float:
    """The mean value of a property: ms, tokens, or the share of failed requests; 0 if unknown."""
    sums = {
        "ttft": (counts.ttft_log, counts.timed),
        "tpot": (counts.tpot_log, counts.decoded),
        "longer": (counts.tokens_log, counts.completed),
        "shorter": (counts.tokens_log, counts.completed),
    }
    if metric == "errors":
        return counts.failed / counts.ended if counts.ended else 0.0
    total, count = sums[metric]
    return mean_of(total, count) if count else 0.0


def _with_errors(known: VersionComparison) -> VersionComparison:
    """A trial of failures ends after `BATCH` requests, or with the first failure of either version
    once the new one has ended no more requests than the former one. With more of them, it would be
    the likelier one to fail."""
    new, old = known.errors.new, known.errors.old
    if not new.ended or not old.ended:
        return known
    if new.ended > old.ended if new.failed + old.failed else new.ended < BATCH:
        return known
    more = new.failed / new.ended - old.failed / old.ended
    tests = [
        Metric(
            one.name,
            one.worse.counted(more > _MORE_ERRORS[0]) if new.failed + old.failed else one.worse,
            one.fit.counted(more <= _MORE_ERRORS[1]),
        )
        if one.name == "errors"
        else one
        for one in known.metrics
    ]
    return replace(known, metrics=tuple(tests), errors=NO_PAIR)


@dataclass(frozen=True, slots=True)
class _Trial:
    """The logarithm of a ratio of the new version to the former one: the lowest and the highest
    value that it may have. may_be_worse, may_be_fit: whether the batches are alike, or differ in
    favour of the other result."""

    low: float
    high: float
    may_be_worse: bool = True
    may_be_fit: bool = True


def _with_trial(known: VersionComparison, arms: tuple[Arm, Arm]) -> VersionComparison:
    trials = dict(_trials(known.pair, arms))
    metrics = []
    for one in known.metrics:
        trial = trials.get(one.name)
        if trial is not None:
            worse, fit = one.worse, one.fit
            worse = worse.counted(trial.low > _WORSE) if trial.may_be_worse else worse
            fit = fit.counted(trial.high < _FIT) if trial.may_be_fit else fit
            one = Metric(one.name, worse, fit)
        metrics.append(one)
    tokens, ratios = trials.get("tpot"), known.ratios
    if tokens is not None and tokens.may_be_worse and tokens.may_be_fit:
        ratio = min(tokens.low, tokens.high, key=abs)
        count, total, squares = ratios
        ratios = count + 1, total + ratio, squares + ratio * ratio
    return replace(known, metrics=tuple(metrics), ratios=ratios)


def _trials(pair: Pair, arms: tuple[Arm, Arm]) -> Iterator[tuple[str, _Trial]]:
    new, old = pair.new, pair.old
    load = (new.completed / max(arms[0].req_per_s, 1e-9)) / (
        old.completed / max(arms[1].req_per_s, 1e-9)
    )
    prompts = (new.input_tokens / new.completed + 1.0) / (old.input_tokens / old.completed + 1.0)
    heavier = max(load, prompts) > _COMPARABLE
    lighter = min(load, prompts) < 1.0 / _COMPARABLE
    alike = {one.id for one in arms[0].combos} == {one.id for one in arms[1].combos}
    if 2 * min(new.timed, old.timed) >= BATCH:
        ratio = log_ratio(new.ttft_log, new.timed, old.ttft_log, old.timed)
        ratio -= 0.0 if alike else math.log(arms[0].mean("ttft_ms") / arms[1].mean("ttft_ms"))
        yield "ttft", _Trial(ratio, ratio, not heavier, not lighter)
    if 2 * min(new.decoded, old.decoded) >= BATCH:
        measured = log_ratio(new.tpot_log, new.decoded, old.tpot_log, old.decoded)
        predicted = _predicted_ratio(pair, arms)
        if alike:
            values = (measured,) if predicted is None else (measured, measured - predicted)
        else:
            planned = math.log(arms[0].mean("tpot_ms") / arms[1].mean("tpot_ms"))
            values = (measured - (planned if predicted is None else predicted),)
        by_load = predicted is not None and prompts >= 1.0 / _COMPARABLE
        yield "tpot", _Trial(min(values), max(values), not heavier, not lighter or by_load)
    if max(prompts, 1.0 / prompts) <= _COMPARABLE:
        longer = log_ratio(new.tokens_log, new.completed, old.tokens_log, old.completed)
        yield "longer", _Trial(longer, longer)
        yield "shorter", _Trial(-longer, -longer)


def _predicted_ratio(pair: Pair, arms: tuple[Arm, Arm]) -> float | None:
    """The logarithm of the ratio of the predicted times per token at the present loads. None
    without predictions. By Little's law, the requests in decoding are the rate of tokens times the
    time per token."""
    found = []
    for counts, arm in ((pair.new, arms[0]), (pair.old, arms[1])):
        times = arm.times
        if times is None or not counts.decoded:
            return None
        measured_ms = mean_of(counts.tpot_log, counts.decoded)
        decoding = counts.output_tokens / pair.seconds * measured_ms / 1000.0
        found.append(times.tpot_ms_at(decoding))
    return math.log(max(found[0], 1e-9) / max(found[1], 1e-9))
