"""Counts the requests of one model between two telemetry records. A request is counted at its
arrival and at its end, as completed, failed, refused or withdrawn; in between it is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from topics.telemetry_span import Span
from topics.version_counts import count_answer, count_failure

_INITIAL_OUTPUT_TOKENS = 256.0
_LEARNING_RATE = 0.02


class Ending(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"  # the client left; not counted against the SLO


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one request. Durations are domain ms since the request's arrival at the gateway.
    first_ms: time of the first token, None if the client did not stream. last_ms: time of the end.
    cached_tokens: input tokens that came from a prefix cache.
    """

    ending: Ending
    last_ms: float = 0.0
    first_ms: float | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class ModelMeter(Span):
    """Counts of one model. tokens_per_estimate: ratio of the engines' count of prompt tokens to the
    gateway's estimate. expected_output_tokens: running mean over `completed_answers`.
    reports_cached: whether an engine has reported cached tokens. vLLM leaves a count of 0 out, so
    answers before the first report do not show whether nothing was cached or nothing is reported.
    """

    tokens_per_estimate: float = 1.0
    expected_output_tokens: float = _INITIAL_OUTPUT_TOKENS
    completed_answers: int = 0
    reports_cached: bool = False

    def record_arrival(self, tokens_guess: int, output_most: int = 0) -> tuple[float, float]:
        """Count an arrival; return the request's (input tokens, expected output tokens).
        output_most: the request's limit of output tokens, 0 if it sets none."""
        tokens = round(tokens_guess * self.tokens_per_estimate)
        output = output_most or self.expected_output_tokens
        self.count_arrival(tokens, round(output))
        return float(tokens), output

    def record_end(
        self,
        outcome: Outcome,
        tokens_guess: int,
        ttft_limit_ms: float,
        tpot_limit_ms: float,
        version: str = "",
    ) -> None:
        """Count the end of a request. version: the version of the engine that served it last, if it
        is compared with others."""
        self.in_flight -= 1
        if outcome.ending is Ending.REFUSED:
            self.refused += 1
            return
        if outcome.ending is Ending.WITHDRAWN:
            # A client that leaves without a token after the TTFT limit counts as a failure.
            if outcome.first_ms is None and outcome.last_ms > ttft_limit_ms:
                self._count_failure(version)
            else:
                self.withdrawn += 1
            return
        if outcome.ending is Ending.FAILED:
            self._count_failure(version)
            return
        self.completed_answers += 1
        self.reports_cached |= outcome.cached_tokens > 0
        if self.reports_cached:
            self.count_cached(outcome.input_tokens, outcome.cached_tokens)
        weight = max(_LEARNING_RATE, 1.0 / self.completed_answers)
        self.expected_output_tokens += weight * (
            outcome.output_tokens - self.expected_output_tokens
        )
        if outcome.input_tokens and tokens_guess:
            ratio = min(100.0, outcome.input_tokens / tokens_guess)
            self.tokens_per_estimate += 0.1 * (ratio - self.tokens_per_estimate)
        self.count_answer(
            outcome.first_ms,
            outcome.last_ms,
            outcome.input_tokens,
            outcome.output_tokens,
            ttft_limit_ms,
            tpot_limit_ms,
        )
        if version:
            count_answer(
                self.sent_to,
                version,
                outcome.first_ms,
                outcome.last_ms,
                outcome.input_tokens,
                outcome.output_tokens,
            )

    def count_failed_attempt(self, version: str) -> None:
        """Count a failure of an engine of `version`, whether or not the request fails."""
        if version:
            count_failure(self.sent_to, version)

    def _count_failure(self, version: str) -> None:
        self.failures += 1
        self.count_failed_attempt(version)
