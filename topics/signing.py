"""Signatures of what changes a fleet: assignments and routes.

Holds how they are signed and checked: HMAC-SHA256 over the topic, the key and the body (node or
model, leader token, generation, validity), with a key per node or model that is derived from the
cluster's. A node that holds its own key cannot sign for others. Pure: whoever opens files or reads
the environment gives it the text.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from topics.checks import InvalidRecord
from topics.codec import encode
from topics.fleet import Assignment
from topics.routing import Routes
from topics.topic_table import ASSIGNMENTS, ROUTES, key_of, topic_of

CLUSTER_KEY, NODE_KEY = "SHOAL_CLUSTER_KEY", "SHOAL_NODE_KEY"
ENGINE_KEY = "SHOAL_ENGINE_KEY"
"""Variables that hold a key; with _FILE behind them, the path of a file that does."""

SIGNED = (ASSIGNMENTS.name, ROUTES.name)
_LEAST_CHARACTERS = 32
_FIELD = "signature"

Signed = TypeVar("Signed", bound=Assignment | Routes)


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """What a process may sign or check with. cluster: for all nodes and models. node: the derived
    key of the one node that its holder runs. engine: what engines ask of whoever calls them, and
    executors and gateways have; it signs nothing."""

    cluster: str = ""
    node: str = ""
    engine: str = ""

    def __bool__(self) -> bool:
        return bool(self.cluster or self.node)

    def of(self, topic: str, key: str) -> str:
        """The key of one node or model, "" where it cannot be known."""
        return derived(self.cluster, topic, key) if self.cluster else self.node


def derived(cluster: str, topic: str, key: str) -> str:
    """The key of `key` on `topic`, e.g. of one node's assignments, as hexadecimal digits."""
    return hmac.new(cluster.encode(), f"shoal/{topic}\n{key}".encode(), hashlib.sha256).hexdigest()


def keys_from(environ: Mapping[str, str], read: Callable[[str], str]) -> Keys:
    """The keys that the environment gives or points to; none where it names none.

    read: the text of a file. InvalidRecord: a key that is too short, or a file without one (the
    key itself is never shown); OSError as `read` raises it.
    """

    def key(variable: str) -> str:
        path = environ.get(f"{variable}_FILE", "")
        found = (read(path) if path else environ.get(variable, "")).strip()
        if (found or path) and len(found) < _LEAST_CHARACTERS:
            shown = f"{len(found)} characters"
            raise InvalidRecord(variable, shown, f"at least {_LEAST_CHARACTERS} characters")
        return found

    engine = key(ENGINE_KEY)
    if not all("!" <= character <= "~" for character in engine):
        allowed = "printable ASCII without spaces: it travels in a header"
        raise InvalidRecord(ENGINE_KEY, f"{len(engine)} characters", allowed)
    return Keys(key(CLUSTER_KEY), key(NODE_KEY), engine)


def signed(record: Signed, keys: Keys, said_ms: int, valid_ms: int) -> Signed:
    """`record` as said at `said_ms` for `valid_ms`, with its signature where there is a key."""
    dated = replace(record, said_ms=said_ms, valid_ms=valid_ms, signature="")
    topic, key = topic_of(record).name, (key_of(record) or b"").decode()
    secret = keys.of(topic, key)
    if not secret:
        return dated
    return replace(dated, signature=_mac(secret, topic, orjson.loads(encode(dated))))


def refusal(topic: str, data: bytes, keys: Keys) -> str:
    """Why `data`, as read from `topic`, is not to be believed; "" if it is.

    Looks at the bytes as they came, so fields that this version does not know are covered. Without
    keys, and on topics whose records are not signed, everything is believed.
    """
    if not keys or topic not in SIGNED:
        return ""
    try:
        value = orjson.loads(data)
        key = str(value["node" if topic == ASSIGNMENTS.name else "model"])
        given = str(value.pop(_FIELD))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return "not signed"
    if not given:
        return "not signed"
    wanted = _mac(keys.of(topic, key), topic, value)
    if not hmac.compare_digest(given.encode(), wanted.encode()):
        return "signature does not match"
    return ""


def _mac(secret: str, topic: str, value: dict[str, Any]) -> str:
    body = {name: item for name, item in value.items() if name != _FIELD}
    text = topic.encode() + b"\n" + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
