"""Chain of records by hashes, and signatures of its heads.

The hash of a record is SHA-256 over the hash of the record before it and its own content, so a
record cannot be changed, removed or inserted without changing every later hash. A head is the
number of a record and its hash; it covers all earlier records. Pure.
"""

from __future__ import annotations

import hashlib
import hmac

from topics.keys import Keys

NO_RECORD = "0" * 64
"""The hash before the first record."""


def chained(previous: str, content: bytes) -> str:
    """The hash of the record `content` after the record with the hash `previous`."""
    return hashlib.sha256(previous.encode() + content).hexdigest()


def head_signature(keys: Keys, writer: str, number: int, head: str) -> str:
    """Signature of the head `head` of the chain of `writer` after `number` records; "" without the
    cluster's key."""
    secrets = keys.chain_keys(writer)
    return _mac(secrets[0], number, head) if secrets else ""


def is_signed(keys: Keys, writer: str, number: int, head: str, signature: str) -> bool:
    """Whether `signature` is that of this head, by any of the keys."""
    return any(
        hmac.compare_digest(signature.encode(), _mac(secret, number, head).encode())
        for secret in keys.chain_keys(writer)
    )


def _mac(secret: str, number: int, head: str) -> str:
    return hmac.new(secret.encode(), f"{number}\n{head}".encode(), hashlib.sha256).hexdigest()
