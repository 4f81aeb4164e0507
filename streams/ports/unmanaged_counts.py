"""Count the vLLM servers that Shoal did not start, through Prometheus.

The servers themselves are never queried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, MutableMapping

from streams.ports.promql import Ask

log = logging.getLogger(__name__)

_EVERY_S = 5.0
_QUERY = 'count by (instance) (vllm:num_requests_running{{model_name="{model}"}})'


class UnmanagedServers:
    """asks: one query function per Prometheus; a server that several of them monitor is counted
    several times, and so is its demand. models: models that may have such servers. own: addresses
    of Shoal's engines. counts: number of servers by model, updated here; an unknown count stays
    unchanged."""

    def __init__(
        self,
        asks: Iterable[Ask],
        models: Callable[[], Iterable[str]],
        own: Callable[[], Collection[str]],
        counts: MutableMapping[str, int],
    ) -> None:
        self._asks = tuple(asks)
        self._models = models
        self._own = own
        self._counts = counts
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Query every few real seconds until cancelled."""
        while True:
            await self.query_once()
            await asyncio.sleep(_EVERY_S)

    async def query_once(self) -> None:
        """Query once for every model."""
        own = frozenset(self._own())
        for model in self._models():
            try:
                answers = await asyncio.gather(
                    *(asyncio.to_thread(ask, _QUERY.format(model=model)) for ask in self._asks)
                )
                found = [str(one["metric"]["instance"]) for answer in answers for one in answer]
            except Exception as error:  # any client error: the count is unknown
                if model not in self._silent:
                    log.warning("servers of %s: Prometheus did not answer: %s", model, error)
                self._silent.add(model)
                continue
            self._silent.discard(model)
            self._counts[model] = sum(address not in own for address in found)
