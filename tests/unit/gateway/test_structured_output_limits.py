"""Limits on the structured output of one request."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from executors.gateway.allowed_fields import BadRequest
from executors.gateway.api_paths import CHAT, COMPLETIONS
from executors.gateway.openai_format import parse_call
from executors.gateway.structured_output_limits import (
    MAX_BYTES,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_PATTERN_CHARS,
    MAX_PROPERTIES,
    MAX_REPETITIONS,
    check_structured,
    repetition_cost,
)


def parse(**fields: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], **fields}
    parse_call(CHAT, orjson.dumps(body))


def strings(count: int, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string", **more}
                                             for i in range(count)}}  # fmt: skip


def lengths(count: int) -> dict[str, Any]:
    return {"properties": {f"p{i}": {"maxLength": 1000 + i} for i in range(count)}}


PLACES: dict[str, Any] = {
    "response_format.json_schema.schema": lambda schema: {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    },
    "response_format.structures": lambda schema: {
        "response_format": {"structures": [{"begin": "<", "schema": schema, "end": ">"}]}
    },
    "response_format.format": lambda schema: {
        "response_format": {"type": "structural_tag", "format": {"content": schema}}
    },
    "structured_outputs.json": lambda schema: {"structured_outputs": {"json": schema}},
    "structured_outputs.structural_tag": lambda schema: {
        "structured_outputs": {"structural_tag": orjson.dumps({"format": schema}).decode()}
    },
    "tools[1].function.parameters": lambda schema: {
        "tools": [{"function": {"name": "a"}}, {"function": {"name": "b", "parameters": schema}}]
    },
}
TOO_MUCH: list[tuple[dict[str, Any], str]] = [
    (strings(MAX_PROPERTIES + 1), f"{MAX_PROPERTIES} properties"),
    ({"anyOf": [{}] * (MAX_PROPERTIES + 1)}, f"{MAX_PROPERTIES} properties and alternatives"),
    ({"$defs": strings(MAX_PROPERTIES + 1)["properties"]}, f"{MAX_PROPERTIES} properties"),
    ({"enum": ["a"] * (MAX_CHOICES + 1)}, f"{MAX_CHOICES} choices"),
    ({"pattern": "a" * (MAX_PATTERN_CHARS + 1)}, f"more than {MAX_PATTERN_CHARS} characters"),
    (strings(200, pattern="(a|b)*c{5,90}d*"), "characters of patterns"),
    (
        {"patternProperties": {"a" * (MAX_PATTERN_CHARS + 1): {}}},
        f"more than {MAX_PATTERN_CHARS} characters",
    ),
    ({"pattern": "((a{99}){99}){99}"}, f"{MAX_REPETITIONS} counted repetitions"),
    (lengths(5), f"{MAX_REPETITIONS} counted repetitions"),
    ({"description": "x" * MAX_BYTES}, f"{MAX_BYTES} bytes"),
]


@pytest.mark.parametrize(("schema", "bound"), TOO_MUCH)
@pytest.mark.parametrize("place", PLACES)
def test_a_schema_over_a_limit_is_refused_with_field_and_limit(
    place: str, schema: dict[str, Any], bound: str
) -> None:
    nested = {"type": "array", "items": {"properties": {"deep": schema}}}
    with pytest.raises(BadRequest, match=bound) as refused:
        parse(**PLACES[place](nested))
    assert refused.value.field == place
    assert str(refused.value).startswith(f"{place}: ")


@pytest.mark.parametrize("place", PLACES)
def test_a_schema_nested_too_deep_is_refused(place: str) -> None:
    schema: dict[str, Any] = {}
    for _ in range(80):
        schema = {"items": schema}
    with pytest.raises(BadRequest, match="nested more than 64 levels") as refused:
        parse(**PLACES[place](schema))
    assert refused.value.field == place or place.startswith("response_format.structures")


@pytest.mark.parametrize(
    ("field", "value", "bound"),
    [
        ("regex", "a" * (MAX_PATTERN_CHARS + 1), "characters"),
        ("regex", "([a-z]{256}){256}", "counted repetitions"),
        ("whitespace_pattern", " {900} {900} {900} {900} {900}", "counted repetitions"),
        ("grammar", "root ::= " + '"a" ' * MAX_GRAMMAR_CHARS, "characters"),
        ("grammar", 'root ::= ("a"{1,1000} "b"){1,100000}', "counted repetitions"),
        ("grammar", "start: A~1..9999\nA: /a/ ~ 999\nB: /b/~999\nC: /c/~999\nD: /d/~999",
         "counted repetitions"),
        ("choice", ["a"] * (MAX_CHOICES + 1), "choices"),
        ("choice", ["a" * MAX_BYTES, "b"], "bytes"),
        ("json", "{", "not JSON"),
        ("structural_tag", "x" * (MAX_BYTES + 1), "bytes"),
    ],
)  # fmt: skip
def test_other_structured_outputs_are_limited_too(field: str, value: object, bound: str) -> None:
    body = {"model": "m", "prompt": "a", "structured_outputs": {field: value}}
    with pytest.raises(BadRequest, match=bound) as refused:
        parse_call(COMPLETIONS, orjson.dumps(body))
    assert refused.value.field == f"structured_outputs.{field}"


def test_the_limits_apply_to_the_sum_of_all_parts_of_a_request() -> None:
    half = strings(MAX_PROPERTIES // 2 + 1)
    parse(structured_outputs={"json": half})
    with pytest.raises(BadRequest, match=r"^tools\[0\].function.parameters: .*properties"):
        parse(structured_outputs={"json": half},
              tools=[{"function": {"name": "a", "parameters": half}}])  # fmt: skip


def test_fields_of_earlier_api_versions_reach_no_engine() -> None:
    for field in ("guided_json", "guided_regex", "guided_choice", "guided_grammar"):
        with pytest.raises(BadRequest, match=f"{field}: this field is not accepted"):
            parse(**{field: "a"})


def test_usual_schemas_are_accepted() -> None:
    order = {
        "type": "object",
        "properties": {
            "id": {"type": "string",
                   "pattern": "^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$"},
            "mail": {"type": "string", "pattern": r"^[\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63})+$"},
            "country": {"enum": [f"C{n}" for n in range(250)]},
            "notes": {"type": "string", "maxLength": 2000},
            "lines": {"type": "array", "maxItems": 100_000, "items": {"$ref": "#/$defs/line"}},
        },
        "$defs": {"line": strings(40, maxLength=255)},
    }  # fmt: skip
    tools = [
        {"function": {"name": f"t{n}", "parameters": strings(12, description="d" * 60)}}
        for n in range(100)
    ]
    parse(response_format={"type": "json_schema", "json_schema": {"schema": order}}, tools=tools)


@pytest.mark.parametrize(
    ("pattern", "extra"),
    [("abc", 0), ("a{3}", 2), ("(ab){100}", 198), ("[a-z{9}]{3}", 2), (r"\{9{2}", 1),
     ("a{2,}", 2), ("a{0,5}", 4), ("a{,5}", 0), ("(a{2}b){3}", 7), ("[]{9}]{2}", 1),
     ("a{999999999999}", 255), ("(((", 0), ("a)))b{3}", 2), ("{3}", 0), ("(?:a){3}", 4)],
)  # fmt: skip
def test_counted_repetitions_are_counted_as_if_written_out(pattern: str, extra: int) -> None:
    assert repetition_cost(pattern) == extra


def test_counting_takes_linear_time() -> None:
    text = "(" * 100 + "[" * 100 + "a{9}" * 78
    begun = time.process_time()
    for _ in range(100):
        repetition_cost(text)
    check_structured({"structured_outputs": {"json": {"enum": ["a"] * MAX_CHOICES}}})
    assert time.process_time() - begun < 1.0
