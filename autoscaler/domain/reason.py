"""The reason of a decision or note, as a value that programs compare.

`autoscaler.explain.reason_texts` converts it to a sentence for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and the parameters of its sentence.

    subject: the model, pool, node or service; "*" for the fleet, "" for none. names: further ids.
    quantities: figures in the order and units of the code's sentence. quoted: text from an
    operator, an engine or an error, shown unchanged. because: the underlying reasons.
    """

    code: ReasonCode
    subject: str = ""
    names: tuple[str, ...] = ()
    quantities: tuple[float, ...] = ()
    quoted: str = ""
    because: tuple[Reason, ...] = ()

    @property
    def kind(self) -> Reason:
        """The reason without figures and quoted text. A reason that is repeated with other figures
        has an equal kind."""
        because = tuple(one.kind for one in self.because)
        return replace(self, quantities=(), quoted="", because=because)

    def codes(self) -> Iterator[ReasonCode]:
        """The code of this reason, then the codes of the underlying reasons."""
        yield self.code
        for one in self.because:
            yield from one.codes()


def codes_of(reasons: Iterable[Reason]) -> tuple[ReasonCode, ...]:
    """The codes of `reasons` and of their underlying reasons, each once, in order."""
    return tuple(dict.fromkeys(code for reason in reasons for code in reason.codes()))


def about(reasons: Iterable[Reason], subject: str) -> tuple[Reason, ...]:
    """The reasons with subject `subject`."""
    return tuple(reason for reason in reasons if reason.subject == subject)
