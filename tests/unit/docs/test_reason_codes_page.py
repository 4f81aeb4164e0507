"""docs/reference/reason-codes.md lists every reason code and no other."""

from __future__ import annotations

import re
from pathlib import Path

from topics.reason_codes import ReasonCode

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "reason-codes.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def test_the_page_lists_exactly_the_codes_with_their_meanings() -> None:
    listed = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted((code.value, code.meaning) for code in ReasonCode)
