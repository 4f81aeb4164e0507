"""Scores of requests, and the model that answers a score. Gateways and simulators use these
rules."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

from autoscaler.serving.prompt_language import language_of
from topics.scoring import PromptRule, ScoreSource, ScoreSplit
from topics.telemetry import UNCLASSED

_CODE = re.compile(
    r"```|^\s*(?:def|class|import|from \w+ import|function|const|let|var|public|private|#include|"
    r"package|func|fn|impl|SELECT|INSERT|CREATE TABLE)\b.*[\w;:{}()<>]\s*$",
    re.M,
)
_PREFIX_CHARS = 16_000
"""Characters of a prompt that are searched, which limits the time for a request."""


def rule_score(rules: Iterable[PromptRule], text: str, tokens: int) -> float | None:
    """The score of the first rule that the prompt matches; None if it matches no rule.

    text: the known part of the prompt. tokens: length of the whole prompt.
    """
    for rule in rules:
        if rule.longer_than and tokens <= rule.longer_than:
            continue
        if rule.code and not has_code(text):
            continue
        if rule.languages and language_of(text) not in rule.languages:
            continue
        return rule.score
    return None


def has_code(text: str) -> bool:
    """Whether `text` contains source code: a fence of three backticks, or a line like a
    statement."""
    return _CODE.search(text[:_PREFIX_CHARS]) is not None


def valid_score(source: ScoreSource, value: object) -> float | None:
    """`value` as a score; None unless it is a finite number within the range of `source`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if source.low <= value <= source.high else None  # false for NaN too


def header_score(source: ScoreSource, text: str) -> float | None:
    """The score in a client's header."""
    try:
        return valid_score(source, float(text)) if len(text) <= 40 else None
    except ValueError:
        return None


def class_of(split: ScoreSplit, score: float | None) -> int:
    """The class of a request with `score`."""
    return UNCLASSED if score is None else bisect_right(split.edges, score)


def model_of(split: ScoreSplit, number: int) -> str:
    """The model that answers requests of class `number`."""
    if number == UNCLASSED:
        return split.unscored
    return split.models[bisect_right(split.cuts, number)]


def fallback_models(split: ScoreSplit, model: str) -> tuple[str, ...]:
    """Models that may answer while `model` has no room, nearest first. Of two models at the same
    distance, the model for harder requests comes first."""
    if not split.fallback:
        return ()
    at = split.models.index(model)
    order = sorted(range(len(split.models)), key=lambda i: (abs(i - at), -i))
    return tuple(split.models[i] for i in order if i != at)
