"""Protection of HTTP endpoints against DNS rebinding and cross-site requests.

With DNS rebinding, a web page resolves its own host name to 127.0.0.1 and can then read from any
local endpoint. The browser still sends the page's host name as `Host`, so an endpoint on loopback
answers only if `Host` is an address, `localhost` or a declared name. All HTTP endpoints of
controller and gateway use these checks.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from topics.checks import InvalidValue

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,251}[a-z0-9_])?\Z")
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::[0-9]{0,5})?\Z")
_SAME = ("same-origin", "none")  # "none": the user typed the address or used a bookmark


@dataclass(frozen=True, slots=True)
class HostRule:
    """The host names under which an endpoint answers. listens_on: address of the listening socket.
    names: declared names in lower case. If other machines can reach the endpoint and no names are
    declared, every name is allowed.
    """

    listens_on: str
    names: frozenset[str] = frozenset()

    @property
    def restricts(self) -> bool:
        """Whether the endpoint refuses some names."""
        return bool(self.names) or is_loopback(self.listens_on)

    def refusal(self, hosts: Sequence[str], is_http10: bool) -> tuple[int, str] | None:
        """Status and text of the refusal of a request with these `Host` headers; None to answer.

        A request has one such header; only a request of HTTP/1.0 may have none (RFC 9112, section
        3.2).
        """
        if len(hosts) != 1 and not (is_http10 and not hosts):
            return 400, f"{len(hosts)} Host headers; allowed: 1"
        if not self.allows("".join(hosts)):
            return 421, "this host name is not allowed here; --allowed-hosts declares one"
        return None

    def allows(self, host: str) -> bool:
        """Whether to answer a request with this `Host` header. "" is allowed, because browsers
        always send the header; only HTTP/1.0 clients omit it."""
        return not host or not self.restricts or _allowed(host, self.names)


def parse_host_names(field: str, text: str) -> frozenset[str]:
    """Host names from a comma-separated list. Raises InvalidValue if any of them is invalid."""
    found = frozenset(part.strip().lower().rstrip(".") for part in text.split(",") if part.strip())
    for name in sorted(found):
        if not _NAME.match(name):
            raise InvalidValue(field, name, "host names without a port, separated by commas")
    return found


def is_loopback(address: str) -> bool:
    """Whether only processes on this machine can reach `address`."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def is_cross_site(host: str, origin: str, fetch_site: str) -> bool:
    """Whether the request is from a browser that shows a page of another origin.

    host, origin, fetch_site: the headers Host, Origin and Sec-Fetch-Site, "" if absent. Only
    browsers send Origin and Sec-Fetch-Site.
    """
    if fetch_site:
        return fetch_site.lower() not in _SAME
    return bool(origin) and origin.partition("://")[2].lower() != host.lower()


@lru_cache(maxsize=256)
def _allowed(host: str, names: frozenset[str]) -> bool:
    found = _AUTHORITY.match(host.lower())
    if found is None:
        return False
    name = found[1].rstrip(".")
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
