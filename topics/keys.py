"""Signing keys of processes, derived from the cluster's key.

Defines which principal signs which topic, and how to derive the key of a principal. Pure: callers
read files and the environment.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from topics.checks import InvalidValue
from topics.topic_table import (
    ALERTS,
    ASSIGNMENTS,
    AVAILABILITY,
    CONTROLS,
    DEMAND,
    LEDGER,
    NAMES,
    PRICES,
    ROUTES,
    SERVICES,
    STATUS,
    TELEMETRY,
)

CLUSTER_KEY, NODE_KEY = "SHOAL_CLUSTER_KEY", "SHOAL_NODE_KEY"
GATEWAY_KEY, OPERATOR_KEY = "SHOAL_GATEWAY_KEY", "SHOAL_OPERATOR_KEY"
ENGINE_KEY = "SHOAL_ENGINE_KEY"
"""Names of environment variables that hold a key. With the suffix _FILE, the variable holds the
path of a file with the key."""
ACCEPT_UNSIGNED = "SHOAL_ACCEPT_UNSIGNED"
"""Name of the environment variable whose value "yes" accepts unsigned records, for the time in
which an older version still writes them."""

LEAST_CHARACTERS = 32
MOST_LINES = 2
_WORKER = re.compile(r"(?P<gateway>.+)\.w\d{1,3}\Z")


class Principal(StrEnum):
    """A signer of records.

    CONTROLLER: controllers and window workers, which have the cluster's key. GATEWAYS: controllers
    that sign with the key by which all gateways verify routes.
    """

    NODE = "node"
    GATEWAY = "gateway"
    GATEWAYS = "gateways"
    OPERATOR = "operator"
    CONTROLLER = "controller"


SIGNER: Mapping[str, Principal] = {
    STATUS.name: Principal.NODE,
    ASSIGNMENTS.name: Principal.NODE,
    TELEMETRY.name: Principal.GATEWAY,
    ROUTES.name: Principal.GATEWAYS,
    SERVICES.name: Principal.OPERATOR,
    CONTROLS.name: Principal.OPERATOR,
    AVAILABILITY.name: Principal.OPERATOR,
    PRICES.name: Principal.OPERATOR,
    ALERTS.name: Principal.CONTROLLER,
    DEMAND.name: Principal.CONTROLLER,
    LEDGER.name: Principal.CONTROLLER,
    NAMES.name: Principal.CONTROLLER,
}
"""The principal that signs the records of a topic, by short name; other topics are unsigned."""


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """The keys of a process for signing and verifying, "" = none.

    Each key is one line, or two lines during a rotation: then the first line signs, and both
    verify. cluster: the cluster's key, from which all other signing keys are derived. node: the key
    of one node. gateway: a gateway's own key, then a dot, then the key by which all gateways verify
    routes. operator: the key for services, controls, prices and availability. engine: the API key
    of engines, which executors and gateways need; it signs no records. unsigned_accepted: whether
    records without a signature are accepted; records with an invalid signature are always refused.
    """

    cluster: str = ""
    node: str = ""
    engine: str = ""
    gateway: str = ""
    operator: str = ""
    unsigned_accepted: bool = False

    def __bool__(self) -> bool:
        return bool(self.cluster or self.node or self.gateway or self.operator)

    def record_keys(self, topic: str, key: str) -> tuple[str, ...]:
        """The keys for the assignments of node `key` or the routes of model `key`, the signing key
        first; empty if this process cannot derive them."""
        if self.cluster:
            return tuple(derive_key(line, topic, key) for line in _lines(self.cluster))
        return tuple(_lines(self.node)) if topic == ASSIGNMENTS.name else ()

    def principal_keys(self, principal: Principal, name: str = "") -> tuple[str, ...]:
        """The keys of a principal, the signing key first; empty if this process cannot derive them.
        name: name of the node or gateway."""
        if self.cluster:
            return tuple(principal_key(one, principal, name) for one in _lines(self.cluster))
        if principal is Principal.NODE:
            return tuple(_lines(self.node))
        if principal is Principal.OPERATOR:
            return tuple(_lines(self.operator))
        if principal in (Principal.GATEWAY, Principal.GATEWAYS):
            place = 0 if principal is Principal.GATEWAY else 1
            return tuple(line.split(".")[place] for line in _lines(self.gateway))
        return ()

    def chain_keys(self, writer: str) -> tuple[str, ...]:
        """The keys for the heads of the decision log of controller `writer`, the signing key first;
        empty without the cluster's key."""
        return tuple(derive_key(line, "decision-log", writer) for line in _lines(self.cluster))


def derive_key(cluster: str, topic: str, key: str) -> str:
    """The signing key, as hexadecimal digits, for records with the Kafka key `key` on `topic` (e.g.
    the assignments of a node)."""
    return hmac.new(cluster.encode(), f"shoal/{topic}\n{key}".encode(), hashlib.sha256).hexdigest()


def principal_key(cluster: str, principal: Principal, name: str = "") -> str:
    """The key of a principal. The key of a node is also the key of its assignments."""
    if principal is Principal.NODE:
        return derive_key(cluster, ASSIGNMENTS.name, name)
    return derive_key(cluster, principal, name)


def credential(cluster: str, principal: Principal, name: str = "") -> str:
    """The key text to give to a node, a gateway or an operator. It has one line for each line of
    `cluster`."""

    def line(one: str) -> str:
        own = principal_key(one, principal, name)
        if principal is Principal.GATEWAY:
            return f"{own}.{principal_key(one, Principal.GATEWAYS)}"
        return own

    return "\n".join(line(one) for one in _lines(cluster))


def gateway_name(gateway: str) -> str:
    """Name of the gateway whose key signs telemetry of `gateway`: worker NAME.w1 uses the key of
    NAME."""
    found = _WORKER.match(gateway)
    return found["gateway"] if found else gateway


def keys_from_environment(environ: Mapping[str, str], read: Callable[[str], str]) -> Keys:
    """The keys in environment variables, or in files that they name.

    read: returns a file's text; its OSError passes through. Raises InvalidValue if a key is too
    short or missing in its file, or if its file has more than two lines. Errors never show the key
    itself.
    """

    def key(variable: str) -> str:
        path = environ.get(f"{variable}_FILE", "")
        return check_key(
            variable, read(path) if path else environ.get(variable, ""), asked=bool(path)
        )

    path = environ.get(f"{ENGINE_KEY}_FILE", "")
    engine = (read(path) if path else environ.get(ENGINE_KEY, "")).strip()
    if (engine or path) and len(engine) < LEAST_CHARACTERS:
        shown = f"{len(engine)} characters"
        raise InvalidValue(ENGINE_KEY, shown, f"at least {LEAST_CHARACTERS} characters")
    if not all("!" <= character <= "~" for character in engine):
        allowed = "printable ASCII without spaces: it travels in a header"
        raise InvalidValue(ENGINE_KEY, f"{len(engine)} characters", allowed)
    gateway = key(GATEWAY_KEY)
    if any(line.count(".") != 1 for line in _lines(gateway)):
        raise InvalidValue(GATEWAY_KEY, "another text", "what `shoal keys derive --gateway` wrote")
    accept = environ.get(ACCEPT_UNSIGNED, "")
    if accept not in ("", "yes", "no"):
        raise InvalidValue(ACCEPT_UNSIGNED, accept, "yes or no")
    return Keys(
        key(CLUSTER_KEY), key(NODE_KEY), engine, gateway, key(OPERATOR_KEY), accept == "yes"
    )


def check_key(name: str, text: str, asked: bool = True) -> str:
    """The lines of the key `text` without surrounding white space. name: name of the variable, for
    errors. asked: whether to refuse an empty key. Raises InvalidValue as `keys_from_environment`
    does."""
    lines = [line.strip() for line in _lines(text.strip())]
    if len(lines) > MOST_LINES:
        raise InvalidValue(name, f"{len(lines)} lines", f"at most {MOST_LINES}, a key each")
    if not lines and asked:
        raise InvalidValue(name, "0 characters", f"at least {LEAST_CHARACTERS} characters")
    for line in lines:
        if len(line) < LEAST_CHARACTERS:
            shown = f"{len(line)} characters"
            raise InvalidValue(name, shown, f"at least {LEAST_CHARACTERS} characters")
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []
