"""Parse the listen address of an option.

This module does not import the HTTP server, so that a command line can be checked without it.
"""

from __future__ import annotations

from streams.files.user_errors import UserError


def parse_listen(address: str, option: str = "--http") -> tuple[str, int]:
    """Host and port of "HOST:PORT", an IPv6 host without its brackets. UserError if `address`, the
    value of `option`, has another form."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{option} {address}: not HOST:PORT")
    return host, int(port)
