"""Operators by name: who sends a request to the controller, and what they may do.

A name comes from one of three sources: a token of the file of operators, the shared operator token
(the name is then `shared`), or a header of a proxy that has authenticated the person. The header
counts only if the request comes from a declared address of the proxy.

The file has one operator a line: name, right, salt and hash of the token. A plain hash is enough,
because a token has 256 random bits. Operators who come through the proxy alone have `-` instead of
salt and hash. The file is read again when it changes; if the new one is invalid, the last valid one
stays in force.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from streams.files.user_errors import UserError
from streams.health.tokens import NO_TOKEN, BearerToken
from topics.error_text import error_text

log = logging.getLogger(__name__)

OPERATORS_FILE = "SHOAL_OPERATORS_FILE"
"""Variable with the path of the file of operators."""
USER_HEADER = "SHOAL_PROXY_USER_HEADER"
"""Variable with the name of the header in which a proxy sends the person's name."""
PROXIES = "SHOAL_TRUSTED_PROXIES"
"""Variable with the addresses or networks of that proxy, separated by commas."""
SHARED = "shared"
"""Name of everybody who has the shared operator token."""
RIGHTS = ("read", "operate")
MOST_OPERATORS = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}\Z")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}\Z")
_HEX = re.compile(r"[0-9a-f]{32} [0-9a-f]{64}\Z")
_MOST_BYTES = 1 << 20
_PREFIX = "shoal_"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a request. is_person: whether one person has this name."""

    name: str
    may_operate: bool
    is_person: bool = True


@dataclass(frozen=True, slots=True)
class Operator:
    """One line of the file. right: one of RIGHTS. salt, digest: of the token, "" for none."""

    name: str
    right: str
    salt: str = ""
    digest: str = ""

    @property
    def line(self) -> str:
        """The operator as a line of the file."""
        return f"{self.name} {self.right} {f'{self.salt} {self.digest}' if self.salt else '-'}"

    def has_token(self, token: str) -> bool:
        """Whether `token` is this operator's."""
        return bool(self.salt) and hmac.compare_digest(_digest(self.salt, token), self.digest)


def new_operator(name: str, right: str) -> tuple[Operator, str]:
    """An operator with a new random token, and the token."""
    token, salt = f"{_PREFIX}{secrets.token_urlsafe(32)}", secrets.token_hex(16)
    return Operator(check_name(name), right, salt, _digest(salt, token)), token


def check_name(name: str) -> str:
    """`name`, if an operator may have it. UserError: it is not allowed."""
    if not _NAME.match(name) or name == SHARED:
        raise UserError(
            f"operator {name[:100]!r}: is not allowed; allowed: 1 to 100 letters, digits or "
            f"._@+-, except {SHARED}"
        )
    return name


def parse_operators(text: str, source: str) -> dict[str, Operator]:
    """Operators by name. UserError names the line and the fault."""
    found: dict[str, Operator] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        place = f"{source}:{number}"
        name, right, *rest = (*fields, "", "")
        try:
            check_name(name)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        if right not in RIGHTS:
            raise UserError(f"{place}: right {right[:40]!r} is not allowed; allowed: "
                            f"{' or '.join(RIGHTS)}")  # fmt: skip
        hashed = " ".join(rest).strip()
        if hashed != "-" and not _HEX.match(hashed):
            raise UserError(
                f"{place}: {name}: not salt and hash; allowed: the lines that `shoal operator add` "
                "writes"
            )
        if name in found:
            raise UserError(f"{place}: {name}: is in the file twice")
        salt, _, digest = hashed.partition(" ")
        found[name] = Operator(name, right, salt if digest else "", digest)
    if len(found) > MOST_OPERATORS:
        raise UserError(f"{source}: {len(found)} operators; allowed: at most {MOST_OPERATORS}")
    return found


def read_operators(path: Path) -> dict[str, Operator]:
    """Operators of a file. UserError: the file cannot be read or is invalid."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error_text(error)
        raise UserError(f"{OPERATORS_FILE} {path}: cannot be read ({why})") from None
    if len(raw) > _MOST_BYTES:
        raise UserError(f"{OPERATORS_FILE} {path}: more than {_MOST_BYTES} bytes")
    return parse_operators(text, str(path))


class Operators:
    """Identifies the senders of requests. shared: the shared operator token. path: file of
    operators. header, proxies: see the variables; both or neither are set."""

    def __init__(
        self,
        shared: BearerToken = NO_TOKEN,
        path: Path | None = None,
        header: str = "",
        proxies: Sequence[Network] = (),
    ) -> None:
        self._shared = shared
        self._path = path
        self._header = header
        self._proxies = tuple(proxies)
        self._known: dict[str, Operator] = {}
        self._stamp: object = None
        if path is not None:
            self._stamp = _stamp_of(path)
            self._known = read_operators(path)

    def __bool__(self) -> bool:
        """Whether anybody can operate over HTTP."""
        return bool(self._shared) or self._path is not None

    @property
    def has_proxy(self) -> bool:
        """Whether a proxy may name the person, so that a page needs no token."""
        return bool(self._header)

    def identify(
        self, authorization: str, named: Sequence[str] = (), peer: str = ""
    ) -> Identity | None:
        """The sender of a request; None if neither token nor header is valid.

        authorization: the header Authorization. named: the values of the proxy's header. peer:
        address of the connection's other end. A token counts before the proxy's header.
        """
        self._refresh()
        token = authorization.removeprefix("Bearer ")
        if authorization and token != authorization:
            for one in self._known.values():
                if one.has_token(token):
                    return _identity(one)
            if self._shared.allows(authorization):
                return Identity(SHARED, may_operate=True, is_person=False)
            return None
        if len(named) != 1 or not self._is_proxy(peer):
            return None
        person = self._known.get(named[0].strip())
        return _identity(person) if person is not None else None

    def sent_name(self, headers: Mapping[str, str]) -> list[str]:
        """The values of the proxy's header among `headers`, a multi-dict; empty without a proxy."""
        getall = getattr(headers, "getall", None)
        return list(getall(self._header, [])) if self._header and getall is not None else []

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._proxies)

    def _refresh(self) -> None:
        """Read the file again if it has changed."""
        if self._path is None:
            return
        stamp = _stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._known = read_operators(self._path)
        except UserError as error:
            log.error("operators: %s; the last valid file stays in force", error)
        else:
            log.info("operators: %d in %s", len(self._known), self._path)


NO_OPERATORS = Operators()


def operators_from(environ: Mapping[str, str], shared: BearerToken) -> Operators:
    """Operators that the environment declares. UserError: a variable has an invalid value."""
    path, header = environ.get(OPERATORS_FILE, ""), environ.get(USER_HEADER, "")
    listed = environ.get(PROXIES, "")
    if header and not _HEADER.match(header):
        raise UserError(f"{USER_HEADER}: {header[:40]!r} is not allowed; allowed: a header's name")
    if bool(header) != bool(listed.strip()):
        raise UserError(
            f"{USER_HEADER} and {PROXIES}: only one is set; allowed: both, because a name counts "
            "only from the proxy's address"
        )
    if header and not path:
        raise UserError(f"{USER_HEADER}: needs {OPERATORS_FILE}, which lists who may operate")
    proxies = []
    for part in listed.split(","):
        if not part.strip():
            continue
        try:
            proxies.append(ipaddress.ip_network(part.strip()))
        except ValueError:
            raise UserError(
                f"{PROXIES}: {part.strip()[:60]!r} is not allowed; allowed: addresses and "
                "networks, such as 10.0.0.7 or 10.0.0.0/24"
            ) from None
    return Operators(shared, Path(path) if path else None, header, proxies)


def _identity(one: Operator) -> Identity:
    return Identity(one.name, one.right == "operate")


def _digest(salt: str, token: str) -> str:
    data = token.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(
        data, digest_size=32, salt=bytes.fromhex(salt), person=b"shoal"
    ).hexdigest()


def _stamp_of(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
