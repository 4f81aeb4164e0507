"""Why something is as it is, as a value that programs compare and people read as a sentence.

The sentence is made in `autoscaler.explain.text` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class Reason:
    """A code, and what the sentence names.

    subject: the model, pool, node or service that it is about, "*" for the fleet, "" for none.
    names: further ids. quantities: in the order and units that the sentence of the code reads.
    quoted: words of an operator, an engine or an error, shown as they are. because: the reasons
    behind it.
    """

    code: ReasonCode
    subject: str = ""
    names: tuple[str, ...] = ()
    quantities: tuple[float, ...] = ()
    quoted: str = ""
    because: tuple[Reason, ...] = ()

    @property
    def kind(self) -> Reason:
        """The same reason without figures and quoted words: equal whenever it is given again."""
        because = tuple(one.kind for one in self.because)
        return replace(self, quantities=(), quoted="", because=because)

    def codes(self) -> Iterator[ReasonCode]:
        """Its own code, then those of the reasons behind it."""
        yield self.code
        for one in self.because:
            yield from one.codes()


def codes_of(reasons: Iterable[Reason]) -> tuple[ReasonCode, ...]:
    """The codes of `reasons` and of what is behind them, each once, in order."""
    return tuple(dict.fromkeys(code for reason in reasons for code in reason.codes()))


def about(reasons: Iterable[Reason], subject: str) -> tuple[Reason, ...]:
    """Those of `reasons` that are about `subject`."""
    return tuple(reason for reason in reasons if reason.subject == subject)
