"""Limits on the sizes and waiting times that one client may use.

`wire.body_memory` limits all request bodies together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Real seconds and bytes of one connection. idle_s: between two requests. head_s, body_s: until
    a request's head and body are complete. write_s: while the client does not read. slack_bytes: a
    chunked body may take twice `body_bytes` plus these bytes on the wire."""

    head_bytes: int = 32 * 1024
    head_s: float = 10.0
    body_bytes: int = 16 * 1024 * 1024
    body_s: float = 60.0
    idle_s: float = 75.0
    write_s: float = 30.0
    slack_bytes: int = 64 * 1024
