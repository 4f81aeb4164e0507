"""Signatures of what changes a fleet: assignments and routes.

Holds how they are signed and checked: HMAC-SHA256 over the topic, the key and the body (node or
model, leader token, generation, validity), with a key per node or model that is derived from the
cluster's. A node that holds its own key cannot sign for others. Records of other topics are signed
beside their body (`topics.macs`).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from enum import StrEnum
from typing import Any, TypeVar

import orjson

from topics.codec import encode
from topics.fleet import Assignment
from topics.keys import Keys
from topics.routing import Routes
from topics.topic_table import ASSIGNMENTS, ROUTES, key_of, topic_of

SIGNED = (ASSIGNMENTS.name, ROUTES.name)
_FIELD = "signature"


class Refusal(StrEnum):
    """Why a record is not believed."""

    UNSIGNED = "not signed"
    WRONG = "signature does not match"
    MISADDRESSED = "signed for another key"
    STALE = "signed too long ago"
    REPLAYED = "not newer than the last one of its key"


Signed = TypeVar("Signed", bound=Assignment | Routes)


def signed(record: Signed, keys: Keys, said_ms: int, valid_ms: int) -> Signed:
    """`record` as said at `said_ms` for `valid_ms`, with its signature where there is a key."""
    dated = replace(record, said_ms=said_ms, valid_ms=valid_ms, signature="")
    topic, key = topic_of(record).name, (key_of(record) or b"").decode()
    secrets = keys.of(topic, key)
    if not secrets:
        return dated
    return replace(dated, signature=_mac(secrets[0], topic, orjson.loads(encode(dated))))


def refusal(topic: str, data: bytes, keys: Keys) -> Refusal | None:
    """Why `data`, as read from `topic`, is not to be believed; None if it is.

    Looks at the bytes as they came, so fields that this version does not know are covered. Without
    keys, and on topics whose records are not signed, everything is believed.
    """
    if not keys or topic not in SIGNED:
        return None
    try:
        value = orjson.loads(data)
        key = str(value["node" if topic == ASSIGNMENTS.name else "model"])
        given = str(value.pop(_FIELD))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return Refusal.UNSIGNED
    if not given:
        return Refusal.UNSIGNED
    for secret in keys.of(topic, key):
        if hmac.compare_digest(given.encode(), _mac(secret, topic, value).encode()):
            return None
    return Refusal.WRONG


def _mac(secret: str, topic: str, value: dict[str, Any]) -> str:
    body = {name: item for name, item in value.items() if name != _FIELD}
    text = topic.encode() + b"\n" + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
