"""Label selectors as Kubernetes writes them, such as "app=chat,tier in (a,b),!canary". Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TERM = re.compile(
    r"\s*(?P<absent>!)?\s*(?P<key>[^\s!=,()<>]+)\s*"
    r"(?:(?P<sign>==?|!=)\s*(?P<value>[^\s,()]*)|(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?"
    r"\s*(?:,|\Z)"
)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One part of a selector. values: values of the label `key`, None = any. negated: whether the
    label must be absent, or have another value."""

    key: str
    values: frozenset[str] | None
    negated: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` meet the requirement."""
        present = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return present is not self.negated


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """The requirements of a selector. Raises ValueError for any other text."""
    found, at = [], 0
    while at < len(text):
        term = _TERM.match(text, at)
        if term is None:
            raise ValueError(f"label selector {text!r} cannot be read")
        found.append(_requirement(term))
        at = term.end()
    return tuple(found)


def _requirement(term: re.Match[str]) -> Requirement:
    values = None
    if term["sign"]:
        values = frozenset((term["value"],))
    elif term["word"]:
        values = frozenset(value.strip() for value in term["values"].split(","))
    negated = bool(term["absent"]) or term["sign"] == "!=" or term["word"] == "notin"
    return Requirement(term["key"], values, negated)
