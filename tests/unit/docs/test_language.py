"""The language linter detects the patterns that CONTRIBUTING.md rules out."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_spec = importlib.util.spec_from_file_location("language", ROOT / "deploy" / "language.py")
assert _spec is not None and _spec.loader is not None
language = importlib.util.module_from_spec(_spec)
sys.modules["language"] = language
_spec.loader.exec_module(language)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ('"""Owns the table."""', "opening"),
        ('def f():\n    """What a tick finds."""', "opening"),
        ('WHY = "capacity beside the plan"', "words"),
        ("X = 1  # computed anew", "words"),
        ("# one\n# two\n# three\n# four\nX = 1", "comment"),
        ("def said():\n    return 1", "name"),
        ("class Found:\n    pass", "name"),
    ],
)
def test_each_pattern_is_found(source: str, rule: str) -> None:
    assert [finding.rule.split(" ")[0] for finding in language.check("a.py", source)] == [rule]


def test_a_plain_file_has_no_finding() -> None:
    source = '"""Maps request ids to rows."""\n\n# Rows are reused.\nROWS = 3\n'
    assert language.check("rows.py", source) == []


def test_a_banned_module_name_is_found() -> None:
    assert [finding.text for finding in language.check("x/table.py", "X = 1\n")] == ["table"]
