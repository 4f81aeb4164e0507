"""External text cannot control a terminal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.topics.any_records import RECORDS
from topics.checks import InvalidValue, machine_text
from topics.codec import decode, encode
from topics.printable import printable, printable_json, printable_lines
from topics.records import Control
from topics.services import DeclaredService
from topics.topic_table import topic_of

# Clear screen, set title, C1 escape, new line, right-to-left override, zero width, tag.
HOSTILE = "a\x1b[2Jb\x1b]0;t\x07c\x9b2Jd\r\ne\u202ef\u200bg\U000e0041h\x00i\ud800"


def test_only_printable_text_stays() -> None:
    assert printable("GPU zu heiß: 85 °C, 模型") == "GPU zu heiß: 85 °C, 模型"
    assert printable(HOSTILE) == "a?[2Jb?]0;t?c?2Jd  e?f?g?h?i?"
    assert printable_lines("a\n\tb\r\x1b") == "a\n\tb ?"


@given(st.text(st.characters()))
def test_all_text_becomes_printable(text: str) -> None:
    assert printable(text).isprintable()
    assert all(line.isprintable() for line in printable_lines(text).replace("\t", "").split("\n"))
    assert len(printable(text)) == len(text)


@given(st.text(st.characters(codec="utf-8")))
def test_printable_json_has_the_same_meaning(text: str) -> None:
    shown = printable_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert shown.isprintable() and json.loads(shown) == {text: [text]}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, (tuple, list, frozenset)):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (*_texts(key), *_texts(one))


@given(st.one_of(*RECORDS.values()))
def test_records_contain_only_printable_text(record: Any) -> None:
    """This holds for records created here or read from a topic. Only a DeclaredService may have
    line breaks.
    """
    if isinstance(record, DeclaredService):
        return
    read = decode(topic_of(record).name, encode(record))
    assert all(text.isprintable() for one in (record, read) for text in _texts(one))


def test_an_external_record_is_cleaned_when_it_is_read() -> None:
    written = json.loads(encode(Control("m", "pause", True, "ann", "because", 1)))
    read = decode(
        "controls", json.dumps({**written, "who": HOSTILE[:20], "why": HOSTILE[:-1]}).encode()
    )
    assert read.why == printable(HOSTILE[:-1]) and read.who.isprintable()
    with pytest.raises(InvalidValue, match="scope") as refused:
        decode("controls", json.dumps({**written, "scope": HOSTILE[:-1]}).encode())
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ["a\nb", "a\x1bb", "a\u202eb", "a" * 9])
def test_unprintable_text_in_a_field_for_programs_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="8 "):
        machine_text("basis", text, 8)
