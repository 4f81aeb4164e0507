"""Lines of a decision log: their form on disk, their chain, and how to read a damaged file.

A segment is a file of gzip members, one after the other. The first line of a member is a start with
the whole state, so a member can be read without the others. A line is a JSON object:

   hash   of the line and, through the hash of the previous line, of all lines before it
   head   number, kind and time of the record; a start also has the previous line's hash, the
          signature of that hash, and the ticks that were lost before it
   body   content of the record, see `log_entries`
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO

import orjson

from topics.checks import InvalidValue
from topics.codec import read_value, write_value
from topics.record_chain import chained

FORM = 7
"""Version of the line format. Earlier versions held other values, so they cannot be replayed."""
MAX_LINE_BYTES = 32 << 20
"""The longest line. A longer one is refused, so that a reader needs a bounded amount of memory."""
_CHUNK, _MOST_HEAD = 1 << 20, 1000
_MAGIC = b"\x1f\x8b\x08"
_START, _HASHED = b'{"hash":"', 75  # the hash covers the line after `{"hash":"<64 digits>",`
_PREFIX = re.compile(rb'\{"hash":"([0-9a-f]{64})","head":\{')
_BODY = b',"body":'
_OLD = re.compile(rb'\{"form":(\d+)')


class Kind(StrEnum):
    """START: the first line of a member. TICK: one tick. END: the controller closed the segment."""

    START = "start"
    TICK = "tick"
    END = "end"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a line. number: counts the records of a controller, across its segments and
    restarts. at_ms: time of the tick. previous: hash of the previous record, in a start. signature:
    signature of that hash, in a start and an end, "" without a key. lost, lost_since_ms: ticks that
    were not written before this start, and the time of the last one that was."""

    number: int
    kind: Kind
    at_ms: int
    form: int = 0
    previous: str = ""
    signature: str = ""
    lost: int = 0
    lost_since_ms: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line that was read. offset: of its member in the file. content: the bytes that the hash
    covers."""

    offset: int
    hash: str
    head: Head
    content: bytes

    def follows(self, previous: str) -> bool:
        """Whether the hash of this line is the one after the hash `previous`."""
        return self.hash == chained(previous, self.content)

    def body(self) -> dict[str, object]:
        """The body. ValueError: it is not a JSON object."""
        value = orjson.loads(self.content[self.content.index(_BODY) + len(_BODY) : -1])
        if not isinstance(value, dict):
            raise ValueError("the body is not a JSON object")
        return value


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a file that cannot be read, up to the next member. torn: the file ends in the
    middle of a line, as it does if the controller is killed during a write."""

    offset: int
    why: str
    torn: bool = False


def write_line(head: Head, body: object, previous: str) -> tuple[bytes, str]:
    """The line of a record after the record with the hash `previous`, and its hash."""
    content = b'"head":%b%b%b}\n' % (write_value(head), _BODY, write_value(body))
    if len(content) + _HASHED > MAX_LINE_BYTES:
        size = f"{len(content) / (1 << 20):.0f} MiB"
        raise ValueError(f"a record of {size} is not allowed; allowed: {MAX_LINE_BYTES >> 20} MiB")
    made = chained(previous, content[:-1])
    return b'%b%b",%b' % (_START, made.encode(), content), made


def read_line(offset: int, line: bytes) -> Line:
    """Decode `line` without its line break. ValueError: it is not a line of this form."""
    found = _PREFIX.match(line)
    end = line.find(_BODY, 0, _MOST_HEAD)
    if found is None or end < 0:
        old = _OLD.match(line)
        if old is not None:
            form = old.group(1).decode()
            raise ValueError(f"written in form {form}; this version reads form {FORM} only")
        raise ValueError("not a record of a decision log")
    head = read_value(Head, orjson.loads(line[_HASHED + len(b'"head":') : end]))
    if head.kind is Kind.START and head.form != FORM:
        raise ValueError(f"written in form {head.form}; this version reads form {FORM} only")
    return Line(offset, found.group(1).decode(), head, line[_HASHED:])


def read_lines(path: Path, most_bytes: int = MAX_LINE_BYTES) -> Iterator[Line | Damage]:
    """The lines of a segment in order, and the parts that cannot be read. The chain is not checked.
    Memory is bounded by a line of `most_bytes`. Raises OSError."""
    with path.open("rb") as file:
        offset: int | None = 0
        damaged = False
        while offset is not None:
            member = _Member(file, offset, most_bytes)
            is_first = True
            for one in member.lines():
                if isinstance(one, Damage) and damaged and is_first:
                    break  # `offset` is not the beginning of a member
                yield one
                is_first, damaged = False, isinstance(one, Damage)
            if damaged or member.end is None:
                offset = _next_member(file, offset + 1) if damaged else None
            else:
                offset = member.end


class _Member:
    """One gzip member. end: offset of the next member; None if the file ends before."""

    def __init__(self, file: BinaryIO, offset: int, most_bytes: int) -> None:
        self._file, self._offset, self._most_bytes = file, offset, most_bytes
        self.end: int | None = None

    def lines(self) -> Iterator[Line | Damage]:
        """The lines of the member. Damage is the last one."""
        unpacker, rest, at = zlib.decompressobj(31), b"", self._offset
        began = False
        try:
            while not unpacker.eof:
                packed = unpacker.unconsumed_tail
                if not packed:
                    self._file.seek(at)
                    packed = self._file.read(_CHUNK)
                    at += len(packed)
                if not packed:
                    if rest or not at:
                        why = "the file ends in the middle of a record" if rest else "empty"
                        yield self._damage(why, torn=True)
                    return
                *whole, rest = (rest + unpacker.decompress(packed, _CHUNK)).split(b"\n")
                for text in whole:
                    line = read_line(self._offset, text)
                    if (line.head.kind is Kind.START) is began:
                        raise ValueError("a start is missing, or in the middle")
                    began = True
                    yield line
                if len(rest) > self._most_bytes:
                    most = f"{self._most_bytes / (1 << 20):g} MiB"
                    raise ValueError(f"a record of more than {most} is refused")
        except (zlib.error, InvalidValue, ValueError, KeyError, TypeError) as error:
            yield self._damage(str(error))
            return
        if rest:
            yield self._damage("the member ends in the middle of a record")
            return
        end = at - len(unpacker.unused_data)
        self._file.seek(end)
        if self._file.read(1):
            self.end = end

    def _damage(self, why: str, torn: bool = False) -> Damage:
        return Damage(self._offset, why, torn)


def _next_member(file: BinaryIO, offset: int) -> int | None:
    """The offset of the next bytes that may begin a member; None if there are none."""
    while True:
        file.seek(offset)
        chunk = file.read(_CHUNK)
        found = chunk.find(_MAGIC)
        if found >= 0:
            return offset + found
        if len(chunk) < _CHUNK:
            return None
        offset += len(chunk) - len(_MAGIC) + 1
