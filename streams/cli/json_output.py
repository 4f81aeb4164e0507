"""The form of `--json` output: indented UTF-8 that ends with a line feed."""

from __future__ import annotations

import orjson

from streams.terminal import show_json_bytes


def encoded(value: object) -> bytes:
    """`value` as indented UTF-8 JSON that ends with a line feed."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def show_json(value: object) -> None:
    """Write `value` to standard output."""
    show_json_bytes(encoded(value))
