"""Reads docs/reference/json.md, and lists the keys of JSON values in its notation.

In a documented key, `[]` stands for an item of a list, and a word in capitals for any name. A key
that begins with a dot has the prefix of the first key in its cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.integration.docs.page_commands import ROOT

PAGE = ROOT / "docs" / "reference" / "json.md"
_SECTION = re.compile(r"^## (shoal [^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_KEY = re.compile(r"`([^`]+)`")
RECORD = "](topics.md#decision)"
"""Marks keys whose content is a record of docs/reference/topics.md."""


def documented() -> dict[str, dict[str, bool]]:
    """The keys of each section. True: the content of the key is described elsewhere."""
    text = PAGE.read_text(encoding="utf-8")
    return {title: dict(_keys(body)) for title, body in _SECTION.findall(text)}


def _keys(body: str) -> Iterator[tuple[str, bool]]:
    for row in re.findall(r"^\| (`.*)$", body, re.MULTILINE):
        cell, meaning = row.split(" | ", 1)
        opaque = RECORD in meaning or "as in `" in meaning
        keys = _KEY.findall(cell)
        prefix = keys[0].rpartition(".")[0]
        for key in keys:
            yield prefix + key if key.startswith(".") else key, opaque


def paths(value: Any, path: str = "") -> Iterator[str]:
    """The keys of a JSON value down to its leaves. An empty object or list is a leaf."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from paths(one, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for one in value:
            yield from paths(one, f"{path}[]")
    else:
        yield path


def matches(key: str, path: str, opaque: bool) -> bool:
    """Whether the documented key stands for the path. A name may hold dots. opaque: also for all
    paths below it."""
    pattern = re.sub(r"(?<![a-z0-9_])[A-Z]+(?![a-z])", "ANY", key)
    pattern = re.escape(pattern).replace("ANY", r".+?")
    return re.fullmatch(pattern + (r"(?:[.\[].*)?" if opaque else ""), path) is not None


def undocumented(section: str, value: Any) -> list[str]:
    """The keys of a value that the section does not document."""
    keys = documented()[section]
    return sorted(
        path
        for path in set(paths(value))
        if not any(matches(key, path, opaque) for key, opaque in keys.items())
    )
