"""API keys: which models a key may use, and how often.

The file of keys is read again when it changes. If the new file is invalid, that is reported and the
last valid keys stay in force. The file holds SHA-256 digests, never keys. A plain digest is enough,
because keys are long random strings; it costs about a microsecond per request.

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

from executors.gateway.gateway_metrics import GatewayMetrics
from topics import plainyaml
from topics.checks import InvalidValue, name, number

log = logging.getLogger(__name__)

ALL_MODELS = "*"
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_CHECK_PERIOD_REAL_S = 1.0
_FIELDS = {"name", "sha256", "models", "requests_per_minute"}
_MAX_BYTES = 4 * 1024 * 1024


class AccessDenied(Exception):
    """Refusal of a request because of its API key. retry_s: seconds until the request will be
    allowed, 0 if never."""

    def __init__(self, status: int, message: str, retry_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_s = retry_s


class InvalidKeysFile(Exception):
    """Error at the start of the gateway: the file of keys is invalid."""


@dataclass(slots=True)
class ApiKey:
    """One API key, with a token bucket of one minute's requests."""

    name: str
    models: frozenset[str]
    per_minute: float = 0.0  # 0: no limit
    _tokens: float = 0.0
    _refilled_s: float = -math.inf

    def take_token(self, now: float) -> float:
        """Take a token and return 0, or return the real seconds until one is available."""
        if not self.per_minute:
            return 0.0
        rate = self.per_minute / 60.0
        self._tokens = min(
            max(1.0, self.per_minute), self._tokens + (now - self._refilled_s) * rate
        )
        self._refilled_s = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / rate
        self._tokens -= 1.0
        return 0.0

    def inherit_tokens(self, before: ApiKey) -> None:
        """Keep the token bucket that this key had before the file was read again."""
        self._tokens, self._refilled_s = before._tokens, before._refilled_s


class AccessControl:
    """Checks API keys. Without a file of keys, every request is allowed."""

    def __init__(self, path: Path | None, metrics: GatewayMetrics) -> None:
        self._path = path
        self._metrics = metrics
        self._keys: dict[str, ApiKey] = {}
        self._file_stamp: tuple[int, int, int] | None = None

    @property
    def requires_keys(self) -> bool:
        """Whether requests need an API key."""
        return self._path is not None

    def load(self) -> None:
        """Read the file. Raises InvalidKeysFile or OSError."""
        try:
            self._load()
        except (InvalidValue, UnicodeDecodeError) as error:
            raise InvalidKeysFile(str(error)) from error

    def _load(self) -> None:
        if self._path is None:
            return
        stat = self._path.stat()
        self._file_stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if stat.st_size > _MAX_BYTES:
            raise InvalidValue("keys", f"{stat.st_size} bytes", f"at most {_MAX_BYTES} bytes")
        new_keys = parse_keys(self._path.read_text())
        for digest, key in new_keys.items():
            if digest in self._keys:
                key.inherit_tokens(self._keys[digest])
        self._keys = new_keys
        if stat.st_mode & 0o077:
            log.warning("%s: other users can read this file; run chmod 600", self._path)

    async def watch_file(self) -> None:
        """Read the file again whenever it changes. Never returns."""
        while True:
            await asyncio.sleep(_CHECK_PERIOD_REAL_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> None:
        """Read the file again if it has changed. If it is invalid, the last valid keys stay."""
        if self._path is None:
            return
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size, stat.st_ino) == self._file_stamp:
                return
            self.load()
            log.info("%s: %d keys", self._path, len(self._keys))
        except (OSError, InvalidKeysFile) as error:
            if self._file_stamp is not None:  # report each change or removal of the file only once
                self._metrics.keys_errors.inc()
                log.warning("%s: the last valid keys stay in force: %s", self._path, error)
            if isinstance(error, OSError):
                self._file_stamp = None

    def authenticate(self, authorization: bytes, now: float | None) -> ApiKey | None:
        """The key of an Authorization header. Takes one of the key's tokens at `now` (real s); None
        takes no token. Returns None if no keys are required. Raises AccessDenied."""
        if self._path is None:
            return None
        scheme, _, secret = authorization.partition(b" ")
        digest = hashlib.sha256(secret.strip()).hexdigest() if scheme.lower() == b"bearer" else ""
        key = self._keys.get(digest)
        if key is None:
            why = "unknown API key" if authorization else "an API key is required"
            raise AccessDenied(401, why)
        wait_s = key.take_token(now) if now is not None else 0.0
        if wait_s:
            limit = f"{key.per_minute:g} requests per minute"
            raise AccessDenied(429, f"{key.name}: more than {limit}", math.ceil(wait_s))
        return key

    def authorize(self, key: ApiKey | None, model: str, adapter: str = "") -> None:
        """Raise AccessDenied unless `key` may use `model`, or its `adapter` if one is given."""
        if not self.may_use(key, model, adapter):
            raise AccessDenied(403, f"this key may not use the model {(adapter or model)[:200]!r}")

    def may_use(self, key: ApiKey | None, model: str, adapter: str = "") -> bool:
        """Whether `key` may use `model`, or its `adapter` if one is given. A key for a model is
        valid for its adapters too."""
        if key is None or ALL_MODELS in key.models or model in key.models:
            return True
        return bool(adapter) and adapter in key.models


def parse_keys(text: str) -> dict[str, ApiKey]:
    """Keys by digest. Raises InvalidValue, which names the invalid field."""
    try:
        root = plainyaml.load(text)
    except yaml.YAMLError as error:
        raise InvalidValue("keys", str(error).replace("\n", " ")[:200], "YAML") from None
    entries = root.get("keys") if isinstance(root, dict) else None
    if not isinstance(entries, list):
        raise InvalidValue("keys", type(entries).__name__, "a list of keys")
    keys: dict[str, ApiKey] = {}
    for index, entry in enumerate(entries):
        digest, key = _parse_key(f"keys[{index}]", entry)
        if digest in keys:
            raise InvalidValue(f"keys[{index}].sha256", digest, "each key once")
        keys[digest] = key
    return keys


def _parse_key(path: str, entry: Any) -> tuple[str, ApiKey]:
    if not isinstance(entry, Mapping):
        raise InvalidValue(path, entry, "name, sha256, models, requests_per_minute")
    for unknown in entry.keys() - _FIELDS:
        raise InvalidValue(f"{path}.{unknown}", entry[unknown], " or ".join(sorted(_FIELDS)))
    name(f"{path}.name", entry.get("name"))
    digest, models = entry.get("sha256"), entry.get("models")
    if not isinstance(digest, str) or not _DIGEST.match(digest):
        value = (
            "something else" if digest is not None else "nothing"
        )  # the error must not show the value, which may be a key
        raise InvalidValue(f"{path}.sha256", value, "64 hexadecimal digits: the key's SHA-256")
    if not isinstance(models, list) or not models:
        raise InvalidValue(f"{path}.models", models, "a list of models, or ['*']")
    for model in models:
        if model != ALL_MODELS:
            name(f"{path}.models", model)
    per_minute = entry.get("requests_per_minute", 0)
    number(f"{path}.requests_per_minute", per_minute, 0.0, 1e9)
    return digest, ApiKey(str(entry["name"]), frozenset(models), float(per_minute))
