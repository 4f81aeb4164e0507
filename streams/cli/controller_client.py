"""Queries to a running controller over HTTP.

The address comes from --url, the environment or the default; the token for reads comes from the
environment. Every failure becomes a UserError of one line.
"""

from __future__ import annotations

import argparse
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

import orjson

from streams.controller.controller_options import HTTP
from streams.files.user_errors import UserError, without_login
from streams.health.tokens import OPERATOR_TOKEN, READ_TOKEN, read_token
from topics.printable import printable

VARIABLE = "SHOAL_URL"
_TIMEOUT_S = 5.0
_COMMAND_S = 15.0


def add_url(parser: argparse.ArgumentParser) -> None:
    """The option --url."""
    parser.add_argument(
        "--url",
        default=os.environ.get(VARIABLE, f"http://{HTTP}"),
        help=f"a controller's address (default %(default)s, or ${VARIABLE})",
    )


def ask(url: str, path: str) -> dict[str, Any]:
    """The JSON object at `path`. UserError: no server answers at `url`, or the server is not a
    controller."""
    _check_url(url)
    token = (read_token(os.environ) or read_token(os.environ, OPERATOR_TOKEN)).read()
    code, found = _exchange(url, path, token)
    if code == 401:
        raise UserError(
            f"--url {url}: reads need the controller's token; set {READ_TOKEN} or {READ_TOKEN}_FILE"
        )
    return found


def send(url: str, command: Mapping[str, Any], token: str) -> str:
    """Give `command` to the controller with an operator's token, and return its answer as text.

    UserError: no controller answers, or it refuses the command.
    """
    _check_url(url)
    code, found = _exchange(url, "/v1/controls", token, orjson.dumps(command), _COMMAND_S)
    if code in (200, 202):
        return str(found.get("said", ""))
    if code == 401:
        raise UserError(f"--url {url}: {OPERATOR_TOKEN} is not the token of an operator there")
    raise UserError(str(found.get("error") or f"--url {url}: HTTP {code}"))


def _check_url(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--url {without_login(url)}: not http://HOST:PORT")
    if without_login(url) != url:
        raise UserError(f"--url {without_login(url)}: a user and password are not sent")


def _exchange(
    url: str, path: str, token: str, body: bytes | None = None, timeout_s: float = _TIMEOUT_S
) -> tuple[int, dict[str, Any]]:
    """Status and JSON object of the answer at `path`. body: JSON to POST, None for a GET."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        address = f"{url.rstrip('/')}{path}"
        request = urllib.request.Request(address, body, headers)  # noqa: S310  checked before
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
                code, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read()
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", error)
        raise UserError(
            f"--url {url}: no controller answers ({_cause(why)}); is it running, with --http? "
            f"(another address: --url or {VARIABLE})"
        ) from None
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise UserError(f"--url {url}: HTTP {code}, not a Shoal controller") from None
    if not isinstance(found, dict):
        raise UserError(f"--url {url}: not a Shoal controller")
    return code, {str(key): _shown(value) for key, value in found.items()}


def _cause(why: object) -> str:
    """A failure of a connection as words, without its number."""
    return getattr(why, "strerror", None) or str(why)


def _shown(value: Any) -> Any:
    """`value` with every text as one printable line, because the server may not be a controller."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_shown(one) for one in value]
    if isinstance(value, dict):
        return {printable(key): _shown(one) for key, one in value.items()}
    return value


def status(url: str) -> dict[str, Any]:
    """`/v1/status`."""
    found = ask(url, "/v1/status")
    if "controller" not in found:
        raise UserError(f"--url {url}: not a Shoal controller")
    return found


def explained(url: str, model: str) -> dict[str, Any]:
    """`/v1/explain/MODEL`. UserError: the model is unknown, or this controller is not the
    leader."""
    found = ask(url, f"/v1/explain/{urllib.parse.quote(model, safe='')}")
    if "error" not in found:
        return found
    if not found.get("leads"):
        raise UserError(
            f"--url {url}: this controller stands by; ask the leader, {found.get('leader') or '?'}"
        )
    known = " or ".join(found.get("models", [])) or "none yet"
    raise UserError(f"{model}: not a declared model; allowed: {known}")
