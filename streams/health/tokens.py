"""Bearer tokens of the controller's HTTP endpoint.

They come from a file or the environment, never from a command line, which every user of the machine
can read.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from streams.files.user_errors import UserError

log = logging.getLogger(__name__)

READ_TOKEN = "SHOAL_READ_TOKEN"  # noqa: S105  the name of a variable
"""Variable with the token for reads; with the suffix _FILE, the path of a file with the token."""
OPERATOR_TOKEN = "SHOAL_OPERATOR_TOKEN"  # noqa: S105  the name of a variable
"""Variable with the token for commands over HTTP; with the suffix _FILE, the path of a file."""
_LEAST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A secret that clients send with each request. path: file with the token, read for every
    request, so the token may rotate. text: the token itself, if there is no file."""

    path: Path | None = None
    text: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return self.path is not None or bool(self.text)

    def read(self) -> str:
        """The current token; "" if the file cannot be read, which is logged."""
        if self.path is None:
            return self.text
        try:
            return self.path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            log.error("bearer token: %s: %s", self.path, error)
            return ""

    def allows(self, authorization: str) -> bool:
        """Whether the header `authorization` has the token. Without a configured token, no request
        is allowed.
        """
        token = self.read()
        given = authorization.encode("utf-8", "surrogateescape")
        return bool(token) and hmac.compare_digest(given, f"Bearer {token}".encode())


NO_TOKEN = BearerToken()


def read_token(environ: Mapping[str, str], name: str = READ_TOKEN) -> BearerToken:
    """Token from the environment, given directly or as a file; empty if neither is set. name: the
    variable. UserError: the file cannot be read, or the token is too short."""
    path, text = environ.get(f"{name}_FILE", ""), environ.get(name, "").strip()
    variable = f"{name}_FILE" if path else name
    if path:
        try:
            text = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UserError(f"{variable} {path}: cannot be read ({why})") from None
    if (text or path) and (len(text) < _LEAST_CHARACTERS or not text.isprintable()):
        raise UserError(
            f"{variable}: {len(text)} characters are not allowed; allowed: at least "
            f"{_LEAST_CHARACTERS} printable ones"
        )
    return BearerToken(Path(path)) if path else BearerToken(text=text)
