"""How much of structured output one request may ask for.

An engine compiles a schema, pattern or grammar on the processors that also serve everybody else, so
what takes it long is one client's way to slow down all others. The bounds are per request; each
refusal names the field and the bound. Two things are dear: repetitions with a count (`maxLength`,
`{n,m}`), of which each distinct one is compiled against the whole vocabulary, and long patterns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from executors.gateway.allowed_fields import BadRequest, schema

MOST_BYTES = 256 * 1024
MOST_PROPERTIES = 2_000
MOST_CHOICES = 5_000
MOST_PATTERN = 512
MOST_PATTERNS = 2_048
MOST_GRAMMAR = 16 * 1024
MOST_REPETITION = 1_024
DEAREST_COUNT = 256
"""Repetitions beyond this count cost no more."""

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items", "elements", "tags", "structures")
_COUNT = re.compile(r"\{(\d{1,12})(?:(,)(\d{0,12}))?\}")
_LARK = re.compile(r"~\s*(\d{1,12})(?:\s*\.\.\s*(\d{1,12}))?")


def check_structured(body: Mapping[str, Any]) -> None:
    """BadRequest where a checked request asks for more than one request may."""
    bill = _Bill()
    form = body.get("response_format") or {}
    asked = body.get("structured_outputs") or {}
    bill.schema("response_format.json_schema.schema", (form.get("json_schema") or {}).get("schema"))
    bill.schema("response_format.structures", form.get("structures"))
    bill.schema("response_format.format", form.get("format"))
    bill.choices("response_format.triggers", len(form.get("triggers") or ()))
    bill.schema("structured_outputs.json", _parsed("structured_outputs.json", asked.get("json")))
    tag = "structured_outputs.structural_tag"
    bill.schema(tag, _parsed(tag, asked.get("structural_tag")))
    bill.pattern("structured_outputs.regex", asked.get("regex"))
    bill.pattern("structured_outputs.whitespace_pattern", asked.get("whitespace_pattern"))
    bill.grammar("structured_outputs.grammar", asked.get("grammar"))
    choice = asked.get("choice") or ()
    bill.choices("structured_outputs.choice", len(choice))
    bill.bytes("structured_outputs.choice", sum(map(len, choice)))
    for number, tool in enumerate(body.get("tools") or ()):
        function = (tool or {}).get("function") or {}
        bill.schema(f"tools[{number}].function.parameters", function.get("parameters"))


def repetition(pattern: str) -> int:
    """How much longer `pattern` is with its counted repetitions written out: 198 for
    `(ab){100}`. Each count is taken as at most `DEAREST_COUNT`."""
    sums, last, written, at = [0], 0, 0, 0  # sums: the length of each open group
    while at < len(pattern):
        sign = pattern[at]
        counted = _COUNT.match(pattern, at)
        if counted is not None:
            more = last * (_times(counted) - 1)
            sums[-1] += more
            last += more
            at = counted.end()
            continue
        if sign == "(":
            sums.append(0)
        elif sign == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif sign not in "*+?|^$":
            last = 1
            sums[-1] += 1
            written += 1
        at = _class_end(pattern, at) if sign == "[" else at + (2 if sign == "\\" else 1)
    return sum(sums) - written


def _times(counted: re.Match[str]) -> int:
    low, comma, high = counted.groups()
    times = int(high) if high else int(low) + bool(comma)
    return max(1, min(times, DEAREST_COUNT))


def _class_end(pattern: str, start: int) -> int:
    """Behind the character class that begins at `start`."""
    at = start + 1
    at += pattern.startswith("^", at)
    at += pattern.startswith("]", at)  # first in a class it is a character
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _parsed(field: str, value: Any) -> Any:
    """The JSON that a text holds; any other value as it is."""
    if type(value) is not str:
        return value
    if len(value) > MOST_BYTES:
        raise BadRequest(f"{field}: more than {MOST_BYTES} bytes", field)
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{field}: not JSON: {error}", field) from None
    schema(field, found)
    return found


class _Bill:
    """What one request has asked for so far."""

    def __init__(self) -> None:
        self._bytes = self._properties = self._choices = self._patterns = self._repetition = 0
        self._counts: set[object] = set()

    def schema(self, field: str, value: Any) -> None:
        """Everything in a schema, at every depth. Keywords count wherever they stand: a default
        value that looks like a schema is counted, too."""
        if value is None:
            return
        self.bytes(field, len(orjson.dumps(value)))
        level = [value]
        while level:
            below: list[Any] = []
            for item in level:
                if type(item) is dict:
                    self._keywords(field, item)
                    below += item.values()
                elif type(item) is list:
                    below += item
            level = below

    def _keywords(self, field: str, item: Mapping[str, Any]) -> None:
        for key in _MAPS:
            if type(item.get(key)) is dict:
                self._parts(field, len(item[key]))
        for key in _LISTS:
            if type(item.get(key)) is list:
                self._parts(field, len(item[key]))
        if type(item.get("enum")) is list:
            self.choices(field, len(item["enum"]))
        if type(item.get("patternProperties")) is dict:
            for pattern in item["patternProperties"]:
                self.pattern(field, pattern)
        for key in ("pattern", "regex"):
            if type(item.get(key)) is str:
                self.pattern(field, item[key])
        if type(item.get("grammar")) is str:
            self.grammar(field, item["grammar"])
        low, high = item.get("minLength"), item.get("maxLength")  # of a string
        counts = [n for n in (low, high) if isinstance(n, (int, float))]
        if counts:
            self._repeat(field, (low, high), int(min(max(counts), DEAREST_COUNT)))

    def bytes(self, field: str, count: int) -> None:
        """So many bytes more."""
        self._bytes += count
        if self._bytes > MOST_BYTES:
            raise _too_much(field, f"{MOST_BYTES} bytes of schemas and choices")

    def choices(self, field: str, count: int) -> None:
        """So many values more of which one is chosen."""
        self._choices += count
        if self._choices > MOST_CHOICES:
            raise _too_much(field, f"{MOST_CHOICES} choices (enum, choice)")

    def pattern(self, field: str, pattern: str | None) -> None:
        """One regular expression more."""
        if not pattern:
            return
        if len(pattern) > MOST_PATTERN:
            raise BadRequest(f"{field}: a pattern of more than {MOST_PATTERN} characters", field)
        self._patterns += len(pattern)
        if self._patterns > MOST_PATTERNS:
            raise _too_much(field, f"{MOST_PATTERNS} characters of patterns")
        self._repeat(field, pattern, repetition(pattern))

    def grammar(self, field: str, grammar: str | None) -> None:
        """One grammar more (EBNF or Lark)."""
        if not grammar:
            return
        if len(grammar) > MOST_GRAMMAR:
            raise BadRequest(f"{field}: a grammar of more than {MOST_GRAMMAR} characters", field)
        self.bytes(field, len(grammar))
        counts = (int(high or low) for low, high in _LARK.findall(grammar))
        lark = sum(min(count, DEAREST_COUNT) for count in counts)
        self._repeat(field, grammar, repetition(grammar) + lark)

    def _repeat(self, field: str, name: object, count: int) -> None:
        if name in self._counts:  # equal ones are compiled once
            return
        self._counts.add(name)
        self._repetition += count
        if self._repetition > MOST_REPETITION:
            raise _too_much(
                field, f"{MOST_REPETITION} counted repetitions (maxLength, {{n,m}}), all together"
            )

    def _parts(self, field: str, count: int) -> None:
        self._properties += count
        if self._properties > MOST_PROPERTIES:
            raise _too_much(field, f"{MOST_PROPERTIES} properties and alternatives")


def _too_much(field: str, bound: str) -> BadRequest:
    return BadRequest(f"{field}: one request may have at most {bound}", field)
