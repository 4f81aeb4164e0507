"""Read `prometheus`: the user's own servers, with tokens and certificates for access."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from autoscaler.domain.validation import InvalidValue
from streams.files import units
from streams.files.user_errors import without_login
from streams.files.yaml_tree import Section


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """token_file: file with a bearer token, read for every query, so the token may rotate. ca_file:
    PEM file of the certificate authority, "" = the system's authorities."""

    url: str
    token_file: str = ""
    ca_file: str = ""


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
        token, authority = (server.take(key, units.text, "") for key in ("token_file", "ca_file"))
        found[name] = PrometheusServer(
            server.take("url", url),
            str(folder / token) if token else "",
            str(folder / authority) if authority else "",
        )
        server.finish()
    return found


def url(value: object) -> str:
    """Check the address of an HTTP server and return it."""
    said = units.text(value)
    try:
        parts = urlsplit(said)
        ok = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is invalid or a bracket is missing
        ok = False
    if not ok:
        raise InvalidValue("", without_login(said), "http(s)://HOST[:PORT]")
    return said.rstrip("/")
