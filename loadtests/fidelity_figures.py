"""Deviation of the latencies of the same requests, between two runs or a run and a simulation.

Requests are paired; deviations are compared with a limit and shown as tables. Latencies
are in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CORAL = {"prefill": 0.056, "decode": 0.072}
"""Mean deviations of Coral's simulator from its real system (arXiv 2605.04357, sec. 6.2)."""
RUNS_FACTOR = 1.5
"""The simulator may deviate by this many times the deviation between two real runs."""
MOST_BETWEEN_RUNS = 0.25
"""Largest deviation between two real runs. Above it the machine was too busy for a comparison."""
_QUANTILES = (0.1, 0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one request. prefill_ms: from its due time to its first token.

    decode_ms: from the first to the last token; 0 for an answer of one token.
    """

    prefill_ms: float
    decode_ms: float


Run = Mapping[int, Latency]
"""The answered requests of a run, by their number in the trace."""

PHASES: Mapping[str, Callable[[Latency], float]] = {
    "prefill": lambda one: one.prefill_ms,
    "decode": lambda one: one.decode_ms,
}


@dataclass(frozen=True, slots=True)
class Deviation:
    """Deviation over pairs of the same request: the mean of |a - b| / b, and the median of a - b in
    ms.
    """

    pairs: int
    mean: float
    shift_ms: float


def deviation(run: Run, real: Run, phase: str) -> Deviation:
    """The deviation of `run` from `real`.

    A request is left out if only one of the two answered it, or if its phase took no time in
    `real`. An answer of one token has no decode. Without a pair the mean is NaN.
    """
    of = PHASES[phase]
    pairs = [(of(run[k]), of(real[k])) for k in real if k in run and of(real[k]) > 0.0]
    if not pairs:
        return Deviation(0, float("nan"), float("nan"))
    ours, theirs = np.array(pairs).T
    apart = float(np.mean(np.abs(ours - theirs) / theirs))
    return Deviation(len(pairs), apart, float(np.median(ours - theirs)))


def bar(phase: str, between_runs: float) -> float:
    """The largest permitted deviation of the simulator.

    It is Coral's deviation, or 1.5 times the deviation between two real runs if that is larger.
    """
    return max(CORAL[phase], RUNS_FACTOR * between_runs)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Deviations of one phase. simulated, shift_ms: deviation of the simulator from the real runs,
    averaged over both. runs: deviation of the second real run from the first."""

    phase: str
    pairs: int
    simulated: float
    shift_ms: float
    runs: float

    @property
    def bar(self) -> float:
        """Largest allowed deviation."""
        return bar(self.phase, self.runs)

    @property
    def judged(self) -> bool:
        """Whether the real runs agree closely enough to compare the simulator with them."""
        return self.pairs > 0 and self.runs <= MOST_BETWEEN_RUNS

    @property
    def is_within_limit(self) -> bool:
        """Whether the simulator's deviation is within the limit."""
        return self.judged and self.simulated <= self.bar


def compare(simulated: Run, real: tuple[Run, Run]) -> list[Comparison]:
    """Compare the simulation with two real runs of the same trace, for each phase."""
    found = []
    for phase in PHASES:
        apart = [deviation(simulated, run, phase) for run in real]
        found.append(
            Comparison(
                phase,
                min(one.pairs for one in apart),
                sum(one.mean for one in apart) / 2.0,
                sum(one.shift_ms for one in apart) / 2.0,
                deviation(real[1], real[0], phase).mean,
            )
        )
    return found


def table(comparisons: Sequence[Comparison]) -> list[str]:
    """Deviations as a Markdown table."""
    heads = (
        "latency", "requests", "simulator", "median difference", "two real runs", "bar", "held",
        "Coral's simulator",
    )  # fmt: skip
    rows = [
        (
            one.phase, str(one.pairs), f"{one.simulated:.1%}", f"{one.shift_ms:+.1f} ms",
            f"{one.runs:.1%}", f"{one.bar:.1%}", "yes" if one.is_within_limit else "no",
            f"{CORAL[one.phase]:.1%}",
        )
        for one in comparisons
    ]  # fmt: skip
    return rows_of(heads, rows)


def rows_of(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def quantiles(runs: Mapping[str, Run]) -> list[str]:
    """The distributions side by side as a Markdown table."""
    heads = ["ms", *(f"{phase} p{100 * q:g}" for phase in PHASES for q in _QUANTILES)]
    rows = []
    for name, run in runs.items():
        cells = [name]
        for phase in PHASES:
            cells += [f"{value:.0f}" for value in _spread(run, phase, _QUANTILES)]
        rows.append(cells)
    return rows_of(heads, rows)


def _spread(run: Run, phase: str, levels: Sequence[float]) -> list[float]:
    values = [value for one in run.values() if (value := PHASES[phase](one)) > 0.0]
    return [float(v) for v in np.quantile(values, levels)] if values else [0.0] * len(levels)
