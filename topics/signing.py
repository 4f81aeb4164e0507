"""Signatures in record bodies, for the records that change a fleet: assignments and routes. The
signature is HMAC-SHA256 over the topic, the key and the body (node or model, leader token,
generation, validity). Each node or model has its own key, derived from the cluster's key, so a node
cannot sign for other nodes. Records of other topics are signed in a header (`topics.macs`).
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

BODY_SIGNED_TOPICS = (ASSIGNMENTS.name, ROUTES.name)
_FIELD = "signature"


class Refusal(StrEnum):
    """The reason why a record is refused."""

    UNSIGNED = "not signed"
    WRONG = "signature does not match"
    MISADDRESSED = "signed for another key"
    STALE = "signed too long ago"
    REPLAYED = "not newer than the last one of its key"


Signed = TypeVar("Signed", bound=Assignment | Routes)


def sign_record(record: Signed, keys: Keys, said_ms: int, valid_ms: int) -> Signed:
    """`record` with the publication time `said_ms` and the validity `valid_ms`, signed if a key is
    available."""
    dated = replace(record, said_ms=said_ms, valid_ms=valid_ms, signature="")
    topic, key = topic_of(record).name, (key_of(record) or b"").decode()
    secrets = keys.record_keys(topic, key)
    if not secrets:
        return dated
    return replace(dated, signature=_mac(secrets[0], topic, orjson.loads(encode(dated))))


def body_refusal(topic: str, data: bytes, keys: Keys) -> Refusal | None:
    """The reason why `data`, read from `topic`, is refused; None if it is accepted. The original
    bytes are verified, so that fields of a later version are included. Without keys, and on topics
    without body signatures, everything is accepted.
    """
    if not keys or topic not in BODY_SIGNED_TOPICS:
        return None
    try:
        value = orjson.loads(data)
        key = str(value["node" if topic == ASSIGNMENTS.name else "model"])
        given = str(value.pop(_FIELD))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return Refusal.UNSIGNED
    if not given:
        return Refusal.UNSIGNED
    for secret in keys.record_keys(topic, key):
        if hmac.compare_digest(given.encode(), _mac(secret, topic, value).encode()):
            return None
    return Refusal.WRONG


def _mac(secret: str, topic: str, value: dict[str, Any]) -> str:
    body = {name: item for name, item in value.items() if name != _FIELD}
    text = topic.encode() + b"\n" + orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
