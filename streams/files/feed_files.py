"""Prices and offers of nodes as people have them: YAML or JSON, pool: number. Read strictly.

Owns their form. A pool is `region/name/market`; `region/name` alone stands for its on-demand nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streams.files import units
from streams.files.yaml_tree import read_text
from topics.checks import InvalidRecord
from topics.records import Availability, Price

KINDS = ("prices", "availability")

_PRICE = units.number(0.0, 100_000.0)
_NODES = units.count(0, 1_000_000)


def read_feed(kind: str, raw: bytes, name: str, now_ms: int) -> list[Any]:
    """The records that `raw` says. kind: of KINDS. ConfigError names the line and the pool."""
    root = read_text(raw, name, "pools and their " + kind)
    parse: Callable[[object], Any] = _PRICE if kind == "prices" else _NODES
    made = Price if kind == "prices" else Availability
    found = []
    for key in root:
        value = root.take(key, parse)
        parts = key.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise root.error(key, "not a pool; allowed: region/name/market, such as us/l40s/spot")
        pool = key if len(parts) == 3 else f"{key}/on-demand"
        try:
            found.append(made(pool, value, now_ms))
        except InvalidRecord as error:
            said = f"{error.value!r} is not allowed; allowed: {error.allowed}"
            raise root.error(key, said) from None
    return found
