"""Extracts the commands of documentation pages.

A block marked `sh` holds commands only. A block marked `console` holds commands after `$ ` and
below each its output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = tuple(
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
    if page.name != "recording.md"
)

_FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(
    r"(?:\$ |(?:shoal|make|python|bash|kubectl|helm|docker|pip|curl|export|source|for|while)\s"
    r"|deploy/|\.venv/)"
)
_HEREDOC = re.compile(r"<<(\w+)\n.*?^\1$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#\s.*$")
_OPTIONAL = re.compile(r"(?<= )\[([^\]\n\"]+)\]")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. language: its mark, "" without one."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def holds_commands(self) -> bool:
        """Whether the first line looks like a command."""
        return bool(_PROGRAM.match(self.text.lstrip()))


@dataclass(frozen=True, slots=True)
class Command:
    """A command. words: program and arguments. output_file: where its output goes, "" if to the
    terminal. shown: the lines of output that the page shows.
    """

    place: str
    words: tuple[str, ...]
    output_file: str = ""
    shown: tuple[str, ...] = ()


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match[1], match[2])


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page's blocks in order. An optional part in square brackets gives one more
    command with it, or one for each alternative.
    """
    for block in blocks(page):
        if block.language == "sh":
            for text in scripts(block.text):
                yield from _variants(block.place, text, ())
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                lines = part.replace("\\\n", " ").splitlines()
                yield from _variants(block.place, lines[0], tuple(lines[1:]))


def scripts(text: str) -> Iterator[str]:
    """The simple commands of shell text, without the content of here documents."""
    joined = _HEREDOC.sub("", text).replace("\\\n", " ")
    for line in joined.splitlines():
        plain = _COMMENT.sub("", line)
        yield from filter(None, map(str.strip, re.split(r"&&|; ", plain)))


def _variants(place: str, text: str, shown: tuple[str, ...]) -> Iterator[Command]:
    text = _COMMENT.sub("", text)
    bare = _OPTIONAL.sub("", text)
    yield from _simple(place, bare, shown)
    for match in _OPTIONAL.finditer(text):
        for choice in match[1].split(" | "):
            yield from _simple(place, f"{bare} {choice}", ())


def _simple(place: str, text: str, shown: tuple[str, ...]) -> Iterator[Command]:
    words = [word for word in shlex.split(text) if word not in ("&", "do", "done")]
    if not words or words[0] in ("for", "while", "sleep"):
        return
    target = ""
    if ">" in words:
        target = words[words.index(">") + 1]
        words = words[: words.index(">")]
    yield Command(place, tuple(words), target, shown)
