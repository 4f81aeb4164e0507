"""The requests in a batch of an engine, and one iteration over them."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.serving.engine_requests import Work


@dataclass(slots=True, eq=False)
class BatchSequence:
    """A request in the machine.

    todo: prompt tokens still to compute; 0: the sequence decodes. context: its tokens in the KV
    cache. reserved: KV cache reserved for it, in tokens. cached: prompt tokens that came from the
    prefix cache. stored: its blocks that are in the prefix cache. was_preempted: whether it lost
    its KV once.
    """

    work: Work
    todo: int
    context: int = 0
    reserved: int = 0
    produced: int = 0
    ready_ms: float = 0.0  # DECODE only: time at which the KV has arrived
    cached: int = 0
    stored: int = 0
    was_preempted: bool = False

    @property
    def tokens_left(self) -> int:
        """Output tokens that are still to produce."""
        return self.work.output_tokens - self.produced

    @property
    def growth(self) -> int:
        """KV tokens that the next decode step needs. It is 0 before the first step, whose token is
        reserved together with the prompt."""
        return 1 if self.produced else 0


@dataclass(slots=True)
class BatchIteration:
    """One iteration in progress. When the iteration ends, sequences that were aborted meanwhile are
    skipped."""

    end_ms: float
    decodes: list[BatchSequence]
    chunks: list[tuple[BatchSequence, int]]


def mean_context(decodes: list[BatchSequence]) -> float:
    """Mean context of `decodes` in tokens."""
    return sum(s.context for s in decodes) / len(decodes)
