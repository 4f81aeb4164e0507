"""Limit how much structured output one request may ask for.

An engine compiles schemas, patterns and grammars on CPUs that all its clients share, so one client
could slow down all others. The limits are per request, and a refusal names the field and the limit.
Long patterns are expensive, and so are counted repetitions (`maxLength`, `{n,m}`), because each
distinct one is compiled against the whole vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from executors.gateway.allowed_fields import BadRequest, any_json

MAX_BYTES = 256 * 1024
MAX_PROPERTIES = 2_000
MAX_CHOICES = 5_000
MAX_PATTERN_CHARS = 512
MAX_PATTERNS_CHARS = 2_048
MAX_GRAMMAR_CHARS = 16 * 1024
MAX_REPETITIONS = 1_024
COUNT_CAP = 256
"""Repetition counts above this cost as much as this count."""

_MAP_KEYWORDS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LIST_KEYWORDS = (
    "anyOf",
    "oneOf",
    "allOf",
    "prefixItems",
    "items",
    "elements",
    "tags",
    "structures",
)
_COUNTED = re.compile(r"\{(\d{1,12})(?:(,)(\d{0,12}))?\}")
_LARK_COUNT = re.compile(r"~\s*(\d{1,12})(?:\s*\.\.\s*(\d{1,12}))?")


def check_structured(body: Mapping[str, Any]) -> None:
    """Raise BadRequest if a checked request exceeds a limit."""
    usage = _Usage()
    form = body.get("response_format") or {}
    structured = body.get("structured_outputs") or {}
    usage.schema(
        "response_format.json_schema.schema", (form.get("json_schema") or {}).get("schema")
    )
    usage.schema("response_format.structures", form.get("structures"))
    usage.schema("response_format.format", form.get("format"))
    usage.choices("response_format.triggers", len(form.get("triggers") or ()))
    usage.schema(
        "structured_outputs.json", _parse_json("structured_outputs.json", structured.get("json"))
    )
    tag = "structured_outputs.structural_tag"
    usage.schema(tag, _parse_json(tag, structured.get("structural_tag")))
    usage.pattern("structured_outputs.regex", structured.get("regex"))
    usage.pattern("structured_outputs.whitespace_pattern", structured.get("whitespace_pattern"))
    usage.grammar("structured_outputs.grammar", structured.get("grammar"))
    choice = structured.get("choice") or ()
    usage.choices("structured_outputs.choice", len(choice))
    usage.bytes("structured_outputs.choice", sum(map(len, choice)))
    for field in ("text", "output_config"):  # of the Responses and Messages APIs
        holder = body.get(field)
        if isinstance(holder, dict):
            usage.schema(f"{field}.format.schema", (holder.get("format") or {}).get("schema"))
    for number, tool in enumerate(body.get("tools") or ()):
        function = (tool or {}).get("function") or {}
        usage.schema(f"tools[{number}].function.parameters", function.get("parameters"))
        for field in ("parameters", "input_schema"):
            usage.schema(f"tools[{number}].{field}", (tool or {}).get(field))


def repetition_cost(pattern: str) -> int:
    """Number of characters by which `pattern` grows if its counted repetitions are written out,
    e.g. 198 for `(ab){100}`. Counts are limited to `COUNT_CAP`."""
    sums, last, written, at = [0], 0, 0, 0  # sums: the length of each open group
    while at < len(pattern):
        sign = pattern[at]
        counted = _COUNTED.match(pattern, at)
        if counted is not None:
            more = last * (_capped_count(counted) - 1)
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


def _capped_count(counted: re.Match[str]) -> int:
    low, comma, high = counted.groups()
    times = int(high) if high else int(low) + bool(comma)
    return max(1, min(times, COUNT_CAP))


def _class_end(pattern: str, start: int) -> int:
    """The index after the character class that begins at `start`."""
    at = start + 1
    at += pattern.startswith("^", at)
    at += pattern.startswith("]", at)  # a first "]" is a literal
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at + 1


def _parse_json(field: str, value: Any) -> Any:
    """Parse `value` as JSON if it is a string; return other values unchanged."""
    if type(value) is not str:
        return value
    if len(value) > MAX_BYTES:
        raise BadRequest(f"{field}: more than {MAX_BYTES} bytes", field)
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"{field}: not JSON: {error}", field) from None
    any_json(field, parsed)
    return parsed


class _Usage:
    """Sums over the structured output that one request contains."""

    def __init__(self) -> None:
        self._bytes = self._properties = self._choices = self._patterns = self._repetition = 0
        self._counts: set[object] = set()

    def schema(self, field: str, value: Any) -> None:
        """Add a schema. Keywords count at every depth, even in a default value that looks like a
        schema."""
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
        for key in _MAP_KEYWORDS:
            if type(item.get(key)) is dict:
                self._add_properties(field, len(item[key]))
        for key in _LIST_KEYWORDS:
            if type(item.get(key)) is list:
                self._add_properties(field, len(item[key]))
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
            self._add_repetitions(field, (low, high), int(min(max(counts), COUNT_CAP)))

    def bytes(self, field: str, count: int) -> None:
        """Add `count` bytes."""
        self._bytes += count
        if self._bytes > MAX_BYTES:
            raise _over_limit(field, f"{MAX_BYTES} bytes of schemas and choices")

    def choices(self, field: str, count: int) -> None:
        """Add `count` alternatives of a choice."""
        self._choices += count
        if self._choices > MAX_CHOICES:
            raise _over_limit(field, f"{MAX_CHOICES} choices (enum, choice)")

    def pattern(self, field: str, pattern: str | None) -> None:
        """Add a regular expression."""
        if not pattern:
            return
        if len(pattern) > MAX_PATTERN_CHARS:
            raise BadRequest(
                f"{field}: a pattern of more than {MAX_PATTERN_CHARS} characters", field
            )
        self._patterns += len(pattern)
        if self._patterns > MAX_PATTERNS_CHARS:
            raise _over_limit(field, f"{MAX_PATTERNS_CHARS} characters of patterns")
        self._add_repetitions(field, pattern, repetition_cost(pattern))

    def grammar(self, field: str, grammar: str | None) -> None:
        """Add a grammar (EBNF or Lark)."""
        if not grammar:
            return
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise BadRequest(
                f"{field}: a grammar of more than {MAX_GRAMMAR_CHARS} characters", field
            )
        self.bytes(field, len(grammar))
        counts = (int(high or low) for low, high in _LARK_COUNT.findall(grammar))
        lark = sum(min(count, COUNT_CAP) for count in counts)
        self._add_repetitions(field, grammar, repetition_cost(grammar) + lark)

    def _add_repetitions(self, field: str, name: object, count: int) -> None:
        if name in self._counts:  # engines compile equal repetitions only once
            return
        self._counts.add(name)
        self._repetition += count
        if self._repetition > MAX_REPETITIONS:
            raise _over_limit(
                field, f"{MAX_REPETITIONS} counted repetitions (maxLength, {{n,m}}) in total"
            )

    def _add_properties(self, field: str, count: int) -> None:
        self._properties += count
        if self._properties > MAX_PROPERTIES:
            raise _over_limit(field, f"{MAX_PROPERTIES} properties and alternatives")


def _over_limit(field: str, bound: str) -> BadRequest:
    return BadRequest(f"{field}: one request may have at most {bound}", field)
