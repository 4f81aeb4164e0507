"""The operator's pod templates in a folder: a ConfigMap that is mounted into the executor's pod.

Because the files are mounted, the executor needs no right to read ConfigMaps. They are read at
each launch, so a change applies to the next pod. Templates of running pods stay known by their
digest, so that their version can be launched again.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import orjson

from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.pod_template import DEFAULT_KEY, parse_template
from topics.checks import InvalidValue

_FRESH_S = 2.0
_DIGITS = 10
_MOST_KNOWN = 64


class TemplateFolder:
    """Files REGION.POOL.yaml and ENGINE.yaml for a pool or an engine, and pod.yaml for all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, Manifest] = {}
        self._digests: dict[tuple[str, str], tuple[float, str | InvalidValue]] = {}

    def template(self, pool: str, engine: str, digest: str = "") -> Manifest:
        """The template with this digest if it is known, else the present one for an engine in a
        pool: the first file that exists, in the order pool, engine, default. Raises InvalidValue
        if there is no valid one."""
        return self._known.get(digest) or self._present(pool, engine)

    def digest(self, pool: str, engine: str) -> str:
        """The digest of the present template for an engine in a pool, at most two seconds old.
        Raises InvalidValue if there is no valid one."""
        now_s = time.monotonic()
        read_s, found = self._digests.get((pool, engine), (-_FRESH_S, ""))
        if now_s - read_s >= _FRESH_S:
            try:
                found = self.remember(self._present(pool, engine))
            except InvalidValue as error:
                found = error
            self._digests[pool, engine] = now_s, found
        if isinstance(found, InvalidValue):
            raise found.with_traceback(None)
        return found

    def remember(self, template: Manifest) -> str:
        """Keep `template`; returns its digest."""
        digest = hashlib.sha256(template_text(template).encode()).hexdigest()[:_DIGITS]
        self._known.pop(digest, None)
        self._known[digest] = template
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return digest

    def _present(self, pool: str, engine: str) -> Manifest:
        for name in _names(pool, engine):
            path = self._folder / name
            try:
                text = path.read_text()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidValue("template", str(path), f"a readable file ({error})") from None
            try:
                return parse_template(text)
            except InvalidValue as error:
                raise InvalidValue(f"{path}: {error.field}", error.value, error.allowed) from None
        allowed = f"{DEFAULT_KEY} or one of {', '.join(_names(pool, engine)[:-1])}"
        raise InvalidValue("templates", str(self._folder), f"a folder with {allowed}")


def template_text(template: Manifest) -> str:
    """`template` as JSON with sorted keys."""
    options = orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(template, option=options).decode()


def _names(pool: str, engine: str) -> tuple[str, ...]:
    region, _, rest = pool.partition("/")
    where = f"{region}.{rest.partition('/')[0]}"
    return f"{where}.yaml", f"{engine.partition('@')[0]}.yaml", DEFAULT_KEY
