"""TLS context of a client that uses renewed certificates at its next connection, because
certificates are renewed while processes run."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any, Self


class RenewedContext(ssl.SSLContext):
    """Verifies servers by `cafile` (None = the system's authorities), and presents `certfile` with
    the key in `keyfile`, if given. Raises OSError if a file is unusable. Later, files that are in
    the middle of a renewal do not count until they are whole; authorities are only added.
    """

    def __new__(cls, **_: str | None) -> Self:
        """A context for clients."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, *, cafile: str | None, certfile: str | None, keyfile: str | None) -> None:
        self._ca, self._pair = cafile, (certfile, keyfile)
        self._loaded: list[tuple[int, int]] = []
        if not cafile:
            self.load_default_certs()
        self._load()

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        """Begin a connection of asyncio."""
        with contextlib.suppress(OSError):
            self._load()
        return super().wrap_bio(*arguments, **more)

    def _load(self) -> None:
        """Read the files if they changed."""
        files = [Path(file).stat() for file in (self._ca, *self._pair) if file]
        found = [(file.st_ino, file.st_mtime_ns) for file in files]
        if found == self._loaded:
            return
        certificate, key = self._pair
        if certificate:
            # A pair that does not match would damage this context.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key)
            self.load_cert_chain(certificate, key)
        if self._ca:
            self.load_verify_locations(self._ca)
        self._loaded = found
