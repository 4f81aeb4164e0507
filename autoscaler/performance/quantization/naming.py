"""Match the patterns of a quantisation configuration to matrices.

A pattern may be a full module name, a part of a name, a name with wildcards, a regular expression
after "re:", or the class name Linear. Module names of one model may have different prefixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate

from autoscaler.domain.validation import InvalidValue

_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.",
             "backbone.", "transformer.", "thinker.model.", "")  # fmt: skip
_CLASSES = frozenset({"Linear", "torch.nn.Linear", "nn.Linear", "ColumnParallelLinear"})
_NESTED = re.compile(r"\([^()]*[*+{][^()]*\)[*+{]")
_UNBOUNDED = re.compile(r"(?<!\\)[*+{]")
# Names have about 60 characters, so a failing match with n quantifiers backtracks 60^n times.
_TRIES, _MOST_TRIES = 60, 1_000_000
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class MatrixNames:
    """The matrices that patterns match. every: True if "Linear" is a pattern, which matches all
    linear matrices."""

    runs: frozenset[str]
    expressions: tuple[re.Pattern[str], ...]
    every: bool

    def __bool__(self) -> bool:
        return bool(self.runs or self.expressions or self.every)

    def has_by_name(self, names: Iterable[str]) -> bool:
        """Whether a pattern other than "Linear" matches a matrix, given its `names` (e.g.
        "layers.3.self_attn.q_proj")."""
        for name in names:
            if self.runs and any(run in self.runs for run in _runs(name)):
                return True
            if self.expressions and any(
                expression.match(full) for expression in self.expressions for full in _full(name)
            ):
                return True
        return False


def names_of(field: str, patterns: Iterable[str]) -> MatrixNames:
    """The parsed patterns. Raises InvalidValue for an unusable regular expression."""
    runs, expressions, globs, every, tries = set(), [], [], False, 0
    for pattern in patterns:
        if pattern in _CLASSES:
            every = True
        elif pattern.startswith("re:"):
            expression = pattern[3:]
            tries += _TRIES ** min(9, len(_UNBOUNDED.findall(expression)))
            if len(pattern) > _LONGEST or tries > _MOST_TRIES or _NESTED.search(expression):
                raise InvalidValue(field, pattern[:80], "regular expressions with few * and +")
            try:
                expressions.append(re.compile(expression))
            except (re.error, OverflowError, RecursionError) as error:
                raise InvalidValue(field, pattern[:80], f"a regular expression ({error})") from None
        elif "*" in pattern or "?" in pattern:
            if len(pattern) > _LONGEST or pattern.count("*") > 3:
                raise InvalidValue(field, pattern[:80], "names with at most 3 wildcards")
            globs.append(translate(_stripped(pattern)))
        else:
            runs.add(_stripped(pattern))
    if globs:  # one expression for all patterns, because there may be hundreds
        expressions.append(re.compile("|".join(globs)))
    return MatrixNames(frozenset(runs), tuple(expressions), every)


def _stripped(pattern: str) -> str:
    for prefix in _PREFIXES[:-1]:
        rest = pattern.removeprefix(prefix)
        if rest != pattern and rest.startswith(("layers.", "lm_head", "embed", "norm")):
            return rest
    return pattern


def _runs(name: str) -> Iterator[str]:
    """All sequences of adjacent components of a name: "a", "a.b" and "b" for "a.b"."""
    parts = name.split(".")
    for start in range(len(parts)):
        for end in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:end])


def _full(name: str) -> Iterator[str]:
    """The name and the names of its parents, each without a prefix and with the two usual
    prefixes."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        parent = ".".join(parts[:end])
        yield parent
        if end >= len(parts) - 1:
            yield f"model.{parent}"
            yield f"model.language_model.{parent}"
