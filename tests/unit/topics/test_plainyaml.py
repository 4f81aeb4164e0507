"""Limits of YAML: text that would expand or recurse is refused with its line."""

from __future__ import annotations

import pytest
import yaml

from topics import plainyaml
from topics.plainyaml import MOST_CHARS, MOST_DEPTH, load

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (LAUGHS, 0, "&a: aliases and anchors"),
        ("a: 1\nb: *a", 1, r"\*a: aliases and anchors"),
        ("a: 1\nb: &a {}", 1, "&a: aliases and anchors"),
        ("a: &a {<<: *a}", 0, "aliases and anchors"),
        ("&a a: 1", 0, "aliases and anchors"),
        (f"a: {'[' * 10_000}", 0, f"more than {MOST_DEPTH} deep"),
        (f"a: {'{a: ' * 100}", 0, f"more than {MOST_DEPTH} deep"),
    ],
)
def test_text_beyond_the_limits_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    """The refusal comes before any value is created."""
    with pytest.raises(yaml.MarkedYAMLError, match=why) as caught:
        load(text)
    assert caught.value.problem_mark.line == line


def test_a_text_with_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plainyaml, "MOST_NODES", 2000)
    with pytest.raises(yaml.MarkedYAMLError, match="more than 2,000 values") as caught:
        load(f"\na: [{'1,' * 2000}]")
    assert caught.value.problem_mark.line == 1


def test_a_text_that_is_too_long_is_not_read() -> None:
    with pytest.raises(yaml.YAMLError, match="characters"):
        load("a" * (MOST_CHARS + 1))


@pytest.mark.parametrize(
    "text", ["a: 2024-13-45", "a: !!int x", "a: !!bool maybe", "a: !!timestamp x", "? [1]\n: 2"]
)
def test_every_invalid_text_raises_one_kind_of_error(text: str) -> None:
    """It is a YAMLError, whatever exception PyYAML itself raises."""
    with pytest.raises(yaml.YAMLError):
        load(text)


def test_plain_values_are_read() -> None:
    assert load("a: [1, {b: text}]\nc: null\n") == {"a": [1, {"b": "text"}], "c": None}
