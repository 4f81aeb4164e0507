"""Each relative link in the documentation leads to a file, and each anchor to a heading.

Headings become anchors as on GitHub: lower case, without punctuation, hyphens for spaces.
"""

import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


@lru_cache
def _text(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@lru_cache
def _anchors(path: Path) -> frozenset[str]:
    return frozenset(_anchor(heading) for heading in _HEADING.findall(_text(path)))


def _fault(page: Path, target: str, anchor: str) -> str:
    """Why the link leads nowhere; "" if it leads somewhere."""
    path = (page.parent / target).resolve() if target else page
    if not path.exists():
        return "no such file"
    if anchor and path.suffix == ".md" and anchor not in _anchors(path):
        return "no such heading"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = _LINK.findall(_CODE.sub("", _text(page)))
    faults = {f"{target}#{anchor}": _fault(page, target, anchor) for target, anchor in links}
    assert {link: fault for link, fault in faults.items() if fault} == {}


def test_every_page_that_code_names_exists() -> None:
    """Help, errors and comments name pages of the documentation by their path."""
    folders = ("autoscaler", "deploy", "executors", "loadtests", "streams", "tests", "topics")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {
        (str(path.relative_to(ROOT)), page)
        for path in files
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }
    assert named
    assert sorted(each for each in named if not (ROOT / each[1]).is_file()) == []
