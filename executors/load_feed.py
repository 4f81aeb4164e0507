"""Load feeds: messages from executors to gateways with the load of engines, several times a second.

A feed is a ZeroMQ publisher (`XPUB`) of one executor, encrypted by CURVE. Its address and public
key come with the signed routes, so a gateway can trust the feed. A lost, late or wrong load changes
only which instance is preferred, never whether a request is served.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson

MAX_BYTES = 1 << 20
_VERSION = 1
_MAX_COUNT = 1_000_000
_FEED = re.compile(r"(?P<at>[A-Za-z0-9._-]+:\d{1,5}|\[[0-9a-fA-F:.%]+\]:\d{1,5}) (?P<key>\S{40})\Z")


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The load of one engine. address: "host:port" for gateways. running, waiting: requests of all
    gateways. held_kv: finished prefills whose KV no decode instance has fetched yet."""

    address: str
    running: int
    waiting: int
    held_kv: int


@dataclass(frozen=True, slots=True)
class Feed:
    """The address of one executor's publisher. url: its ZeroMQ address. key: its public key, 40
    characters (Z85)."""

    url: str
    key: bytes


def feed_text(host: str, port: int, key: bytes) -> str:
    """The address of a feed in records: "host:port KEY"."""
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port} {key.decode()}"


def parse_feed(text: str) -> Feed | None:
    """Parse the result of `feed_text`; None for any other text."""
    match = _FEED.match(text)
    return Feed(f"tcp://{match['at']}", match["key"].encode()) if match else None


def encode(loads: list[EngineLoad]) -> bytes:
    """Encode one message."""
    rows = [(load.address, load.running, load.waiting, load.held_kv) for load in loads]
    return orjson.dumps({"version": _VERSION, "loads": rows})


def decode(data: bytes) -> list[EngineLoad] | None:
    """The loads in a message; None if it is invalid."""
    if len(data) > MAX_BYTES:
        return None
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or value.get("version") != _VERSION:
        return None
    rows = value.get("loads")
    if not isinstance(rows, list) or not all(map(_is_row, rows)):
        return None
    return [EngineLoad(*row) for row in rows]


def _is_row(row: object) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[0], str)
        and all(type(count) is int and 0 <= count <= _MAX_COUNT for count in row[1:])
    )
