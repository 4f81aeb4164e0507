"""The observed demand of a run, by model and minute of domain time, for the comparisons of cost.

Pure: each telemetry record is input once, demands are output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from autoscaler.domain.workload import Demand, Lengths
from topics.records import Telemetry

MINUTE_MS = 60_000
_LEAST_COVERED_MS = 30_000


@dataclass(slots=True)
class _Minute:
    arrivals: int = 0
    covered_ms: dict[str, int] = field(
        default_factory=dict
    )  # by gateway, because gateways share the arrivals

    def req_per_s(self) -> float:
        longest = max(self.covered_ms.values(), default=0)
        return self.arrivals * 1000.0 / longest if longest else 0.0


@dataclass(slots=True)
class _Tokens:
    arrivals: int = 0
    arrived: int = 0
    completions: int = 0
    written: int = 0


class DemandSeen:
    """Collects the demand from telemetry records; `add` each record once."""

    def __init__(self) -> None:
        self._minutes: dict[str, dict[int, _Minute]] = {}
        self._tokens: dict[str, _Tokens] = {}

    def add(self, record: Telemetry) -> None:
        """Add the telemetry of one gateway for one span of time."""
        minutes = self._minutes.setdefault(record.model, {})
        minute = minutes.setdefault(record.end_ms // MINUTE_MS, _Minute())
        minute.arrivals += record.arrivals
        covered = minute.covered_ms
        covered[record.gateway] = covered.get(record.gateway, 0) + record.span_ms
        tokens = self._tokens.setdefault(record.model, _Tokens())
        tokens.arrivals += record.arrivals
        tokens.arrived += record.input_tokens_arrived
        tokens.completions += record.completions
        tokens.written += record.output_tokens

    def minutes(self) -> list[int]:
        """The minutes since the epoch that had arrivals, in order."""
        return sorted(
            {
                number
                for minutes in self._minutes.values()
                for number, minute in minutes.items()
                if minute.arrivals
            }
        )

    def peak(self, minutes: Iterable[int]) -> tuple[Demand, ...]:
        """Each model's busiest minute of `minutes`, with its mean lengths over the whole run.

        A minute with telemetry for less than half of its time counts only if the model has no
        other.
        """
        wanted = list(minutes)
        found = []
        for model, known in self._minutes.items():
            seen = [known[number] for number in wanted if number in known]
            whole = [m for m in seen if max(m.covered_ms.values()) >= _LEAST_COVERED_MS]
            rate = max((minute.req_per_s() for minute in whole or seen), default=0.0)
            if rate > 0.0:
                found.append(Demand(model, rate, self._lengths(model)))
        return tuple(sorted(found, key=lambda demand: demand.model))

    def _lengths(self, model: str) -> Lengths:
        tokens = self._tokens[model]
        return Lengths.expected(
            max(1.0, tokens.arrived / max(1, tokens.arrivals)),
            max(1.0, tokens.written / max(1, tokens.completions)),
        )
