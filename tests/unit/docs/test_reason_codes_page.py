"""docs/reason-codes.md lists every reason code and no other."""

from __future__ import annotations

import re
from pathlib import Path

from topics.reason_codes import ReasonCode

PAGE = Path(__file__).parents[3] / "docs" / "reason-codes.md"
_ROW = re.compile(r"^\| `(\w+)` \| (.+) \|$", re.MULTILINE)


def test_every_code_is_on_the_page_with_its_meaning_and_no_other_is() -> None:
    listed = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert sorted(listed) == sorted((code.value, code.meaning) for code in ReasonCode)
