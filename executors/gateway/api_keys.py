"""API keys: who may ask for which models, and how often.

Owns the file of keys, read again whenever it changes; one that cannot be used is reported and the
last good one stays in force. The file holds SHA-256 digests of the keys and never a key: keys are
long random strings, so a plain digest gives nothing away and costs a request one microsecond.

    keys:
    - name: team-search
      sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
      models: [chat, embed]        # "*" for all
      requests_per_minute: 600     # optional; of each gateway process
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from executors.gateway.gateway_metrics import Metrics
from topics import plainyaml
from topics.checks import InvalidRecord, name, number

log = logging.getLogger(__name__)

ALL = "*"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_LOOK_REAL_S = 1.0
_FIELDS = {"name", "sha256", "models", "requests_per_minute"}
_MOST_BYTES = 4 * 1024 * 1024


class Denied(Exception):
    """This key may not. retry_s: when it may again, 0 if never."""

    def __init__(self, status: int, message: str, retry_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_s = retry_s


class BadKeys(Exception):
    """The file of keys holds what it must not, at a start."""


@dataclass(slots=True)
class Key:
    """One holder. The bucket holds a minute's requests at most, and fills at their rate."""

    name: str
    models: frozenset[str]
    per_minute: float = 0.0  # 0: no bound
    _tokens: float = 0.0
    _at: float = -math.inf

    def spend(self, now: float) -> float:
        """Take one request's worth; real seconds to wait if there is none, else 0."""
        if not self.per_minute:
            return 0.0
        rate = self.per_minute / 60.0
        self._tokens = min(max(1.0, self.per_minute), self._tokens + (now - self._at) * rate)
        self._at = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / rate
        self._tokens -= 1.0
        return 0.0

    def keep_spent(self, before: Key) -> None:
        """The file changed: what was spent stays spent."""
        self._tokens, self._at = before._tokens, before._at


class Access:
    """Who may do what. Without a file everyone may do everything."""

    def __init__(self, path: Path | None, metrics: Metrics) -> None:
        self._path = path
        self._metrics = metrics
        self._keys: dict[str, Key] = {}
        self._seen: tuple[int, int, int] | None = None

    @property
    def keyed(self) -> bool:
        """Whether keys are asked for at all."""
        return self._path is not None

    def load(self) -> None:
        """Read the file; BadKeys or OSError if it cannot be used."""
        try:
            self._load()
        except (InvalidRecord, UnicodeDecodeError) as error:
            raise BadKeys(str(error)) from error

    def _load(self) -> None:
        if self._path is None:
            return
        stat = self._path.stat()
        self._seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stat.st_size > _MOST_BYTES:
            raise InvalidRecord("keys", f"{stat.st_size} bytes", f"at most {_MOST_BYTES} bytes")
        fresh = read_keys(self._path.read_text())
        for digest, key in fresh.items():
            if digest in self._keys:
                key.keep_spent(self._keys[digest])
        self._keys = fresh
        if stat.st_mode & 0o077:
            log.warning("%s: readable by others; chmod 600 is advised", self._path)

    async def keep_fresh(self) -> None:
        """Read the file again whenever it changes, for ever."""
        while True:
            await asyncio.sleep(_LOOK_REAL_S)
            self.look()

    def look(self) -> None:
        """Read the file again if it has changed; the last good one stays if it cannot be used."""
        if self._path is None:
            return
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size, stat.st_ino) == self._seen:
                return
            self.load()
            log.info("%s: %d keys", self._path, len(self._keys))
        except (OSError, BadKeys) as error:
            if self._seen is not None:  # said once per change, and once when it went away
                self._metrics.keys_errors.inc()
                log.warning("%s: the last good keys stay in force: %s", self._path, error)
            if isinstance(error, OSError):
                self._seen = None

    def admit(self, authorization: bytes, now: float | None) -> Key | None:
        """The key in an Authorization header, one request the poorer at `now` (None: a question
        that costs nothing); Denied. None where no keys are asked for."""
        if self._path is None:
            return None
        scheme, _, secret = authorization.partition(b" ")
        digest = hashlib.sha256(secret.strip()).hexdigest() if scheme.lower() == b"bearer" else ""
        key = self._keys.get(digest)
        if key is None:
            why = "not a known API key" if authorization else "an API key is required"
            raise Denied(401, why)
        wait_s = key.spend(now) if now is not None else 0.0
        if wait_s:
            limit = f"{key.per_minute:g} requests per minute"
            raise Denied(429, f"{key.name}: more than {limit}", math.ceil(wait_s))
        return key

    def allow(self, key: Key | None, model: str) -> None:
        """Denied unless `key` may use `model`."""
        if not self.may_use(key, model):
            raise Denied(403, f"this key may not use the model {model[:200]!r}")

    def may_use(self, key: Key | None, model: str) -> bool:
        """Whether `key` may use `model`."""
        return key is None or ALL in key.models or model in key.models


def read_keys(text: str) -> dict[str, Key]:
    """Keys by digest; InvalidRecord names what is wrong."""
    try:
        root = plainyaml.load(text)
    except yaml.YAMLError as error:
        raise InvalidRecord("keys", str(error).replace("\n", " ")[:200], "YAML") from None
    entries = root.get("keys") if isinstance(root, dict) else None
    if not isinstance(entries, list):
        raise InvalidRecord("keys", type(entries).__name__, "a list of keys")
    found: dict[str, Key] = {}
    for index, entry in enumerate(entries):
        digest, key = _key(f"keys[{index}]", entry)
        if digest in found:
            raise InvalidRecord(f"keys[{index}].sha256", digest, "each key once")
        found[digest] = key
    return found


def _key(path: str, entry: Any) -> tuple[str, Key]:
    if not isinstance(entry, Mapping):
        raise InvalidRecord(path, entry, "name, sha256, models, requests_per_minute")
    for unknown in entry.keys() - _FIELDS:
        raise InvalidRecord(f"{path}.{unknown}", entry[unknown], " or ".join(sorted(_FIELDS)))
    name(f"{path}.name", entry.get("name"))
    digest, models = entry.get("sha256"), entry.get("models")
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        shown = "something else" if digest is not None else "nothing"  # it may be the key itself
        raise InvalidRecord(f"{path}.sha256", shown, "64 hexadecimal digits: the key's SHA-256")
    if not isinstance(models, list) or not models:
        raise InvalidRecord(f"{path}.models", models, "a list of models, or ['*']")
    for model in models:
        if model != ALL:
            name(f"{path}.models", model)
    per_minute = entry.get("requests_per_minute", 0)
    number(f"{path}.requests_per_minute", per_minute, 0.0, 1e9)
    return digest, Key(str(entry["name"]), frozenset(models), float(per_minute))
