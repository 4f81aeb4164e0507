"""Composes the sentence of a reason from a template or with a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import duration, lasting, money, rate, setting

Text = Callable[[Reason], str]
Sentence = str | Callable[[Reason, Text], str]
"""A template, or a function that gets the reason and the function for the reasons that it contains.

Fields of a template: {0}, {1}, ... for quantities, in the formats of numbers or in those of
`_FORMATS`; {subject}; {quoted}; {names[0]}, {names[1]}, ...; {all_names}; {because}.
"""

_FORMATS: Mapping[str, Callable[[float], str]] = {
    "duration": duration,
    "lasting": lasting,
    "money": money,
    "rate": rate,
    "setting": setting,
}


class _Quantity(float):
    def __format__(self, spec: str) -> str:
        own = _FORMATS.get(spec)
        return own(self) if own is not None else super().__format__(spec)


def compose(sentence: Sentence, reason: Reason, text: Text) -> str:
    """The sentence of `reason`. text: composes the sentences of the reasons that it contains.
    IndexError or ValueError: ids or figures are missing."""
    if not isinstance(sentence, str):
        return sentence(reason, text)
    return sentence.format(
        *map(_Quantity, reason.quantities),
        subject=reason.subject,
        quoted=reason.quoted,
        names=reason.names,
        all_names=", ".join(reason.names),
        because="; ".join(map(text, reason.because)),
    )
