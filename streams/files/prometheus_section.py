"""Read `prometheus`: the user's own servers, with tokens and certificates for access."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from autoscaler.domain.validation import InvalidValue
from streams.files import units
from streams.files.keys import Either, Group, Key, Named
from streams.files.units import Parser
from streams.files.user_errors import without_login
from streams.files.yaml_tree import Section


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """Access to one server. token_file: file with a bearer token, read for every query, so the
    token may rotate. ca_file: PEM file of the certificate authority, "" = the system's authorities.
    headers: further HTTP headers, such as the tenant of Mimir (`X-Scope-OrgID`). labels: values
    that the labels of all series must have, such as a namespace.
    """

    url: str
    token_file: str = ""
    ca_file: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()


def _address(value: object) -> str:
    said = units.text(value)
    try:
        parts = urlsplit(said)
        ok = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # The port is invalid, or a bracket is missing.
        ok = False
    if not ok:
        raise InvalidValue("", without_login(said), "http(s)://HOST[:PORT]")
    return said.rstrip("/")


url = Parser(_address, "URL", {"type": "string", "pattern": "^https?://"})
"""The address of an HTTP server, without a slash at its end."""

_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}\Z")
_OWN_HEADERS = ("authorization", "host", "content-length", "connection", "transfer-encoding")


def _header_value(value: object) -> str:
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not 0 < len(text) <= 200 or not text.isascii() or not text.isprintable():
        raise InvalidValue("", value, "a text of 1 to 200 printable ASCII characters")
    return text.strip()


header_value = Parser(
    _header_value, "text", {"type": ["string", "integer"], "minLength": 1, "maxLength": 200}
)
"""The value of an HTTP header."""

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")


def _label_values(value: object) -> tuple[str, ...]:
    texts = value if isinstance(value, list) else [value]
    found = tuple(str(one) for one in texts if isinstance(one, str | int) and str(one))
    if not found or len(found) < len(texts) or any(len(one) > 200 for one in found):
        raise InvalidValue("", value, "a text of at most 200 characters, or a list of them")
    return found


_TEXT = {"type": ["string", "integer"], "maxLength": 200}
label_values = Parser(
    _label_values,
    "text, or list of text",
    {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
)
"""The allowed values of a label of metrics."""
LABELS = Named(
    "Allowed values of labels, such as namespace: prod. Other series do not count.", label_values
)


def read_labels(section: Section | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Allowed values by label, sorted by label. ConfigError: a name is not a label's."""
    if section is None:
        return ()
    for name in section:
        if not _LABEL.match(name) or name.startswith("__"):
            raise section.error(name, "is not allowed; allowed: the name of a label of metrics")
    return tuple(sorted((name, section.take(name, label_values)) for name in section))


URL = Key("url", url, "Address of the server.")
TOKEN_FILE = Key(
    "token_file",
    units.text,
    "File with a bearer token. It is read for every query, so the token may rotate.",
    otherwise="no token",
)
CA_FILE = Key(
    "ca_file",
    units.text,
    "PEM file of the server's certificate authority.",
    otherwise="the system's authorities",
)
SERVER = Group(
    "A server with a token, a certificate, headers or labels.",
    (URL, TOKEN_FILE, CA_FILE),
    {
        "headers": Named("Further HTTP headers by name, such as X-Scope-OrgID.", header_value),
        "labels": LABELS,
    },
)
PROMETHEUS = Named(
    "Prometheus servers by name.", Either("A URL, or a mapping.", {"": url}, otherwise=SERVER)
)


def read_prometheus(section: Section | None) -> dict[str, PrometheusServer]:
    """Prometheus servers by name. File paths are relative to the folder of the configuration."""
    if section is None:
        return {}
    folder = Path(section.file).parent
    found = {}
    for name in section:
        if not section.is_mapping(name):
            found[name] = PrometheusServer(section.take(name, url))
            continue
        server = section.section(name, required=True)
        assert server is not None  # noqa: S101  required
        token, authority = TOKEN_FILE.take_or(server, ""), CA_FILE.take_or(server, "")
        found[name] = PrometheusServer(
            URL.take(server),
            str(folder / token) if token else "",
            str(folder / authority) if authority else "",
            _headers(server.section("headers")),
            read_labels(server.section("labels")),
        )
        SERVER.finish(server)
    return found


def _headers(section: Section | None) -> dict[str, str]:
    if section is None:
        return {}
    for name in section:
        if not _HEADER.match(name) or name.lower() in _OWN_HEADERS:
            allowed = "the name of an HTTP header, except Authorization (token_file) and Host"
            raise section.error(name, f"is not allowed; allowed: {allowed}")
    return {name: section.take(name, header_value) for name in section}
