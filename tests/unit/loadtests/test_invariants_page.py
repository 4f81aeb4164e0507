"""docs/reference/invariants.md names only existing tests and faults."""

from __future__ import annotations

import re
from pathlib import Path

from loadtests.chaos.script import FAULTS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/invariants.md").read_text(encoding="utf-8")
ROWS = [row for row in PAGE.splitlines() if re.match(r"\| (\d+|also) \|", row)]


def test_every_line_of_the_page_has_its_evidence() -> None:
    """The page has the lines 1 to 30 once each. Each names a test, or faults of the chaos run."""
    numbers = [row.split("|")[1].strip() for row in ROWS]
    assert [n for n in numbers if n != "also"] == [str(n) for n in range(1, 31)]
    assert all("`test_" in row or "chaos" in row for row in ROWS)


def test_every_named_test_exists() -> None:
    """A renamed test must be renamed on the page too."""
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    files = (ROOT / "tests").rglob("test_*.py")
    defined = {n for f in files for n in re.findall(r"def (test_\w+)\(", f.read_text("utf-8"))}
    assert named
    assert named - defined == set()


def test_every_named_fault_exists() -> None:
    """The chaos run injects each fault that the page names."""
    named = {name for row in ROWS for name in re.findall(r'"([a-z\' ]+)"', row.split("chaos")[-1])}
    assert named
    assert named - {fault.name for fault in FAULTS} == set()
