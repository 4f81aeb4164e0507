"""Headers of clients that the gateway reads: API keys and traces."""

from __future__ import annotations

import ipaddress
import re

from executors.gateway.api_paths import Answers, answers_of
from executors.gateway.wire.client_exchange import Exchange

_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_TRACE_STATE = re.compile(rb"[\x20-\x7e]{1,512}\Z")


def bearer_of(exchange: Exchange) -> bytes:
    """The value of the Authorization header. Clients of the Messages API may send the key in the
    header x-api-key instead."""
    given = exchange.headers.get(b"authorization", b"")
    if not given and answers_of(exchange.path) is Answers.MESSAGES:
        key = exchange.headers.get(b"x-api-key", b"")
        return b"Bearer " + key if key else b""
    return given


def trace_headers(exchange: Exchange) -> bytes:
    """The trace headers of the client as header lines for engines."""
    parent = exchange.headers.get(b"traceparent", b"")
    if not _TRACE_PARENT.match(parent):
        return b""
    state = exchange.headers.get(b"tracestate", b"")
    lines = b"traceparent: %s\r\n" % parent
    return lines + b"tracestate: %s\r\n" % state if _TRACE_STATE.match(state) else lines


def is_local(peer: str) -> bool:
    """Whether `peer` is an address of this host's loopback."""
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False
