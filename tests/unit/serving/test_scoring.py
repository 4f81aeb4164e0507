"""Choice of a model by score, and scores from a prompt, a header or a scorer."""

from __future__ import annotations

import math

import pytest

from autoscaler.serving.prompt_language import LANGUAGES, language_of
from autoscaler.serving.score_routing import (
    class_of,
    fallback_models,
    has_code,
    header_score,
    model_of,
    rule_score,
    valid_score,
)
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.records import PromptRule, Routes, ScoreSource, ScoreSplit
from topics.telemetry import UNCLASSED

SPLIT = ScoreSplit(("small", "middle", "large"), (0.2, 0.4, 0.6), (1, 3), "middle")


@pytest.mark.parametrize(
    ("score", "number", "model"),
    [
        (-5.0, 0, "small"),
        (0.19999, 0, "small"),
        (0.2, 1, "middle"),  # A threshold is the first score of the next model.
        (0.59, 2, "middle"),
        (0.6, 3, "large"),
        (9.0, 3, "large"),
        (None, UNCLASSED, "middle"),
    ],
)
def test_thresholds_split_by_score(score: float | None, number: int, model: str) -> None:
    assert class_of(SPLIT, score) == number
    assert model_of(SPLIT, number) == model


def test_a_model_may_get_no_or_all_requests() -> None:
    everything = ScoreSplit(("a", "b"), (0.5,), (2,), "a")
    nothing = ScoreSplit(("a", "b"), (0.5,), (0,), "a")
    assert {model_of(everything, k) for k in (0, 1)} == {"a"}
    assert {model_of(nothing, k) for k in (0, 1)} == {"b"}


def test_the_nearest_model_takes_over_if_that_is_declared() -> None:
    assert fallback_models(SPLIT, "small") == ()
    open_ = ScoreSplit(SPLIT.models, SPLIT.edges, SPLIT.cuts, "middle", fallback=True)
    assert fallback_models(open_, "small") == ("middle", "large")
    assert fallback_models(open_, "middle") == ("large", "small")


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 1e9, "0.5", None, True, [0.5], {"score": 0.5}, 10**400, -3],
)
def test_an_invalid_score_is_ignored(value: object) -> None:
    assert valid_score(ScoreSource(low=-1.0, high=2.0), value) is None


def test_a_header_is_a_number_within_bounds() -> None:
    source = ScoreSource(low=0.0, high=1.0)
    assert header_score(source, " 0.25 ") == 0.25
    for text in ("", "high", "nan", "1e400", "2", "0." + "1" * 100):
        assert header_score(source, text) is None


def test_the_first_matching_rule_gives_the_score() -> None:
    rules = (
        PromptRule(0.9, longer_than=1000),
        PromptRule(0.8, code=True),
        PromptRule(0.6, languages=("de", "fr")),
    )
    assert rule_score(rules, "short", 1001) == 0.9
    assert rule_score(rules, "```python\nprint(1)\n```", 10) == 0.8
    assert rule_score(rules, "Wie ist das Wetter und was soll ich anziehen?", 10) == 0.6
    assert rule_score(rules, "What is the weather like?", 1000) is None


@pytest.mark.parametrize(
    "text",
    ["def f(x):\n    return x", "#include <stdio.h>", "SELECT a FROM b;", "x\n```\ny\n```"],
)
def test_program_text_is_detected(text: str) -> None:
    assert has_code(text)


@pytest.mark.parametrize("text", ["", "I import goods from India", "Let us function as a class"])
def test_prose_is_not_detected_as_program_text(text: str) -> None:
    assert not has_code(text)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("What is the capital of France, and how big is it?", "en"),
        ("Was ist die Hauptstadt von Frankreich und wie groß ist sie?", "de"),
        ("Quelle est la capitale de la France et combien de gens y sont dans les villes ?", "fr"),
        ("¿Cuál es la capital de España y qué se come en el sur?", "es"),
        ("Какая столица у Франции и как она выглядит на карте?", "ru"),
        ("日本の首都はどこですか", "ja"),
        ("法国的首都是哪里", "zh"),
        ("프랑스의 수도는 어디입니까", "ko"),
        ("ما هي عاصمة فرنسا", "ar"),
        ("", ""),
        ("1 2 3", ""),
        ("xyzzy", ""),
    ],
)
def test_the_language_of_a_sentence_is_detected(text: str, language: str) -> None:
    assert language_of(text) == language
    assert not language or language in LANGUAGES


def test_only_the_beginning_of_a_long_prompt_is_examined() -> None:
    assert language_of("the of and " * 200_000) == "en"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"models": ("a",)}, "models"),
        ({"unscored": "c"}, "unscored"),
        ({"edges": (0.5, 0.5)}, "edges"),
        ({"edges": (math.nan,)}, "edges"),
        ({"cuts": (3,)}, "cuts"),
        ({"cuts": ()}, "cuts"),
    ],
)
def test_an_invalid_split_is_refused(change: dict[str, object], said: str) -> None:
    good = {"models": ("a", "b"), "edges": (0.5,), "cuts": (1,), "unscored": "b"}
    with pytest.raises(InvalidValue, match=said):
        ScoreSplit(**(good | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        {"header": "a b"},
        {"header": "X\r\nY"},
        {"url": "ftp://h"},
        {"url": "http://h/ x"},
        {"url": "http://h\r\nHost: x/"},
        {"limit_ms": 0.0},
        {"low": 1.0, "high": 0.0},
    ],
)
def test_an_invalid_score_source_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        ScoreSource(**change)  # type: ignore[arg-type]


def test_a_split_is_published_with_the_routes() -> None:
    source = ScoreSource("X-Score", (PromptRule(0.5, 10, True, ("de",)),), "http://h:1/s", 50.0)
    split = ScoreSplit(("a", "b"), (0.1, 0.5), (2,), "b", True, source, (0.7, 0.3))
    routes = Routes("auto", 1, 1, 0, 0.0, 0.0, split=split)
    assert decode("routes", encode(routes)) == routes
