"""The operator's pod templates in a folder: a ConfigMap that is mounted into the executor's pod.

Because the files are mounted, the executor needs no right to read ConfigMaps. They are read at
each launch, so a change applies to the next pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.pod_template import DEFAULT_KEY, parse_template
from topics.checks import InvalidRecord


@dataclass(frozen=True, slots=True)
class TemplateFolder:
    """Files REGION.POOL.yaml and ENGINE.yaml for a pool or an engine, and pod.yaml for all."""

    folder: Path

    def template(self, pool: str, engine: str) -> Manifest:
        """The template for an engine in a pool: the first file that exists, in the order pool,
        engine, default. Raises InvalidRecord if there is no valid one."""
        for name in self._names(pool, engine):
            path = self.folder / name
            try:
                text = path.read_text()
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRecord("template", str(path), f"a readable file ({error})") from None
            try:
                return parse_template(text)
            except InvalidRecord as error:
                raise InvalidRecord(f"{path}: {error.field}", error.value, error.allowed) from None
        allowed = f"{DEFAULT_KEY} or one of {', '.join(self._names(pool, engine)[:-1])}"
        raise InvalidRecord("templates", str(self.folder), f"a folder with {allowed}")

    def _names(self, pool: str, engine: str) -> tuple[str, ...]:
        region, _, rest = pool.partition("/")
        where = f"{region}.{rest.partition('/')[0]}"
        return f"{where}.yaml", f"{engine.partition('@')[0]}.yaml", DEFAULT_KEY
