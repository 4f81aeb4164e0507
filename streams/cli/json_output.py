"""How `--json` looks: indented UTF-8 with a line feed at its end."""

from __future__ import annotations

import orjson

from streams.terminal import show_json_bytes


def encoded(value: object) -> bytes:
    """`value` as it is shown."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def show_json(value: object) -> None:
    """Write `value` to standard output."""
    show_json_bytes(encoded(value))
