"""Arrivals of one model as counts per span, with their lengths. With weight 1, counts and lengths
are those of the trace. If an arrival of the trace represents several requests (`weight` above 1),
the trace gives only rate and lengths, and the count of a span is drawn from a Poisson distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import Lengths
from autoscaler.performance.numba_decorators import compiled
from autoscaler.simulation.arrivals import Arrival, lengths_of
from topics.request_shapes import shape_of
from topics.sketch import LOWEST, WIDTH, bucket_of

_BLOCK = 2048
"""Number of neighbouring arrivals from which lengths are drawn if an arrival represents many
requests."""
_WINDOW_S, _MAX_WINDOWS = 120.0, 30
"""Engines are evaluated at the lengths of a stretch of the trace: consecutive windows with equal
lengths, up to an hour."""
_MEAN_TOLERANCE, _SIGMAS = 0.05, 3.0
"""Two means count as equal if they differ by at most this share, or by at most this many standard
errors."""
_MIN_CORRELATION = 0.1

Ints = npt.NDArray[np.int64]
"""Integer arrays. A sketch has the shape (WIDTH,): counts by bucket - LOWEST."""
Floats = npt.NDArray[np.float64]


def empty_sketch() -> Ints:
    """A sketch without counts."""
    return np.zeros(WIDTH, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Requests of one span.

    too_long: number of requests that no engine accepts. input_tokens, inputs, shapes: sums and
    sketches of all requests. output_tokens, outputs: of the accepted requests only.
    """

    requests: int = 0
    too_long: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    inputs: Ints = field(default_factory=empty_sketch)
    outputs: Ints = field(default_factory=empty_sketch)
    shapes: Ints = field(default_factory=empty_sketch)

    @property
    def servable(self) -> int:
        """Number of requests that an engine accepts."""
        return self.requests - self.too_long


class ArrivalFlow:
    """The arrivals of one model. Times are in seconds from the start of the demand.

    arrivals: by rising time.
    """

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        max_len_tokens: int,
        weight: float,
        random: np.random.Generator,
    ) -> None:
        self._at_s = np.array([arrival.at_s for arrival in arrivals])
        self._inputs = np.array([arrival.input_tokens for arrival in arrivals], np.int64)
        self._outputs = np.array([arrival.output_tokens for arrival in arrivals], np.int64)
        self._fits = self._inputs + self._outputs <= max_len_tokens
        ins = _map_distinct(self._inputs, lambda tokens: bucket_of(float(tokens)) - LOWEST)
        outs = _map_distinct(self._outputs, lambda tokens: bucket_of(float(tokens)) - LOWEST)
        # The bucket of a shape is the sum of a part for its input and a part for its output.
        shapes = _map_distinct(self._inputs, lambda tokens: shape_of(tokens, 0.0) - LOWEST)
        shapes += _map_distinct(self._outputs, lambda tokens: shape_of(0.0, tokens) - LOWEST)
        self._buckets = np.stack((ins, outs, shapes))
        # The requests that an arrival represents are spread evenly until the next arrival.
        self._edges_s = np.append(self._at_s, self._at_s[-1:] + 1e-9)
        self._weight, self._random = weight, random
        self._stretches = self._find_stretches()
        self._lengths: dict[tuple[int, int], Lengths] = {}

    def take(self, from_s: float, to_s: float) -> Batch:
        """The requests in [from_s, to_s)."""
        low, high = self._index_range(from_s, to_s)
        if self._weight == 1.0:
            rows = np.arange(low, high)
        else:
            count = int(self._random.poisson(max(0.0, self.expected_requests(from_s, to_s))))
            first = min(max(0, (low + high - _BLOCK) // 2), max(0, len(self._at_s) - _BLOCK))
            block = min(_BLOCK, len(self._at_s))
            rows = first + self._random.integers(block, size=count)
        return self._batch(rows)

    def expected_requests(self, from_s: float, to_s: float) -> float:
        """Expected number of requests in [from_s, to_s)."""
        if self._weight == 1.0:
            low, high = self._index_range(from_s, to_s)
            return float(high - low)
        return self._weight * (
            _count_until(self._edges_s, to_s) - _count_until(self._edges_s, from_s)
        )

    def _index_range(self, from_s: float, to_s: float) -> tuple[int, int]:
        """Indices of the arrivals in [from_s, to_s), as [low, high)."""
        low, high = self._at_s.searchsorted((from_s, to_s)).tolist()
        return low, high

    def has_same_lengths(self, from_s: float, to_s: float) -> bool:
        """Whether the distribution of lengths is constant over [from_s, to_s] and the two minutes
        before."""
        return self._stretch(from_s - _WINDOW_S) == self._stretch(to_s)

    def lengths(self, at_s: float) -> Lengths | None:
        """Lengths of the requests around `at_s`; None if no engine accepts any of them."""
        low, high = self._stretch(at_s)
        if low == high:
            low, high = 0, len(self._at_s)
        if (low, high) not in self._lengths:
            fits = self._fits[low:high]
            pair = self._inputs[low:high][fits], self._outputs[low:high][fits]
            if not fits.any():
                return None
            found = lengths_of(np.array(pair, dtype=float).T.copy())
            self._lengths[low, high] = replace(found, together=_normal_score_correlation(*pair))
        return self._lengths[low, high]

    def _stretch(self, at_s: float) -> tuple[int, int]:
        return self._stretches[min(int(max(0.0, at_s) // _WINDOW_S), len(self._stretches) - 1)]

    def _find_stretches(self) -> list[tuple[int, int]]:
        """For each window, the arrivals of its stretch (adjacent windows with equal lengths) as
        [low, high).

        A window without arrivals joins its neighbours.
        """
        windows = int(self._at_s[-1] // _WINDOW_S) + 1 if len(self._at_s) else 1
        edges = self._at_s.searchsorted(_WINDOW_S * np.arange(windows + 1))
        tokens = np.where(self._fits, np.stack([self._inputs, self._outputs]), 0).astype(float)
        ones = self._fits.astype(float)
        upto = np.cumsum(np.stack([ones, *tokens, *tokens**2]), axis=1)
        upto = np.concatenate([np.zeros((5, 1)), upto], axis=1)[:, edges]
        found: list[tuple[int, int]] = []
        while len(found) < windows:
            first = len(found)
            last = first + 1
            while last < min(windows, first + _MAX_WINDOWS) and _same_lengths(
                upto[:, last] - upto[:, first], upto[:, last + 1] - upto[:, last]
            ):
                last += 1
            found += [(int(edges[first]), int(edges[last]))] * (last - first)
        return found

    def _batch(self, rows: Ints) -> Batch:
        if not len(rows):
            return Batch()
        counts = np.zeros((3, WIDTH), np.int64)
        too_long, input_tokens, output_tokens = _count_into(
            rows, self._fits, self._inputs, self._outputs, self._buckets, counts
        )
        return Batch(len(rows), too_long, input_tokens, output_tokens, *counts)


@compiled
def _count_until(edges_s: Floats, at_s: float) -> float:
    """Number of arrivals until `at_s`, spread evenly between successive `edges_s`."""
    at = int(np.searchsorted(edges_s, at_s, side="right")) - 1
    if at < 0 or at == len(edges_s) - 1:
        return float(max(at, 0))
    return float(1.0 / (edges_s[at + 1] - edges_s[at]) * (at_s - edges_s[at]) + at)


@compiled
def _count_into(
    rows: Ints,
    fits: npt.NDArray[np.bool_],
    inputs: Ints,
    outputs: Ints,
    places: Ints,
    counts: Ints,
) -> tuple[int, int, int]:
    """Count `rows` and add their sketches to `counts`.

    Returns the number of requests that do not fit, the input tokens of all requests, and the output
    tokens of those that fit. counts, (3, WIDTH): sketches of inputs, outputs and shapes. places,
    (3, n): buckets of inputs, outputs and shapes.
    """
    too_long = input_tokens = output_tokens = 0
    for at in rows:
        input_tokens += inputs[at]
        counts[0, places[0, at]] += 1
        counts[2, places[2, at]] += 1
        if fits[at]:
            output_tokens += outputs[at]
            counts[1, places[1, at]] += 1
        else:
            too_long += 1
    return too_long, input_tokens, output_tokens


def _same_lengths(one: Floats, other: Floats) -> bool:
    """Whether two samples have equal mean lengths within chance.

    Each sample is a count, the sums of input and output tokens, and the sums of their squares.
    """
    if not one[0] or not other[0]:
        return True
    both = one + other
    spread = np.maximum(0.0, both[3:] / both[0] - (both[1:3] / both[0]) ** 2)
    chance = _SIGMAS * np.sqrt(spread * (1.0 / one[0] + 1.0 / other[0]))
    apart = np.abs(other[1:3] / other[0] - one[1:3] / one[0])
    return bool((apart <= np.maximum(_MEAN_TOLERANCE * one[1:3] / one[0], chance)).all())


def _normal_score_correlation(one: Ints, other: Ints) -> float:
    """Correlation of the normal scores of `one` and `other`, from their rank correlation; 0 if it
    is small or may be chance."""
    ranks = [_ranks(values) for values in (one, other)]
    if any(np.ptp(each) == 0.0 for each in ranks):
        return 0.0
    of_ranks = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    if abs(of_ranks) < max(_MIN_CORRELATION, _SIGMAS / math.sqrt(len(one))):
        return 0.0
    return round(2.0 * math.sin(of_ranks * math.pi / 6.0), 2)


def _ranks(values: Ints) -> Floats:
    """The rank of each value; equal values share their mean rank."""
    _, back, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - 0.5 * (counts - 1))[back.ravel()]
    return ranks


def _map_distinct(tokens: Ints, code: Callable[[int], int]) -> Ints:
    values, back = np.unique(tokens, return_inverse=True)
    codes = np.array([code(value) for value in values.tolist()], np.int64)
    return codes[back] if len(values) else np.zeros(0, np.int64)
