"""Count the vLLM servers that Shoal did not start, through Prometheus.

The servers themselves are never queried.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from streams.ports.metric_servers import LATELY, RUNNING, Answer, Ask
from streams.ports.vllm_queries import VLLM_SOURCE, MetricSource, servers_query
from topics.error_text import error_text

log = logging.getLogger(__name__)

_EVERY_S = 5.0


class UnmanagedServers:
    """Counts servers that Shoal did not start. asks: one query function per Prometheus. A server
    that several of them monitor is counted several times, as is its demand. models: by model, the
    combo of such a server and the names under which it may report. own: addresses of Shoal's
    engines. counts: number of servers by model and combo, updated here. If a Prometheus does not
    answer, or if none knows such a server, the count is unknown and stays unchanged. sources: the
    metrics of each model."""

    def __init__(
        self,
        asks: Iterable[Ask],
        models: Callable[[], Mapping[str, tuple[str, Sequence[str]]]],
        own: Callable[[], Collection[str]],
        counts: MutableMapping[str, Mapping[str, int]],
        sources: Callable[[], Mapping[str, MetricSource]] = dict,
    ) -> None:
        self._asks = tuple(asks)
        self._models = models
        self._own = own
        self._counts = counts
        self._sources = sources
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Query every few real seconds until cancelled."""
        while True:
            await self.query_once()
            await asyncio.sleep(_EVERY_S)

    async def query_once(self) -> None:
        """Query once for every model."""
        own = frozenset(self._own())
        for model, (combo_id, names) in self._models().items():
            source = self._sources().get(model, VLLM_SOURCE)
            queries = [servers_query(name, source) for name in names]
            try:
                answers = await asyncio.gather(
                    *(asyncio.to_thread(ask, query) for ask in self._asks for query in queries)
                )
                found = [server for answer in answers for server in servers_of(answer)]
            except Exception as error:  # Any client error makes the count unknown.
                self._note_silence(model, f"Prometheus did not answer: {error_text(error)}")
                continue
            if not found:
                self._note_silence(model, f"Prometheus knows none named {' or '.join(names)}")
                continue
            self._silent.discard(model)
            count = sum(count for address, count in found if address not in own)
            self._counts[model] = {combo_id: count}

    def _note_silence(self, model: str, why: str) -> None:
        if model not in self._silent:
            self._silent.add(model)
            log.warning("servers of %s: %s", model, why)


def servers_of(answer: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Address and number of the servers in the answer to `servers_query`.

    Each engine counts. An address whose servers went away counts 0. ValueError and LookupError: not
    an answer with numbers.
    """
    found = Answer(answer)
    counts: Counter[str] = Counter()
    for server, _ in found.each(LATELY):
        counts[server.address] += 0
    for server, _ in found.each(RUNNING):
        counts[server.address] += 1
    return list(counts.items())
