"""Counts the vLLM servers that run without Shoal having started them, through Prometheus.

Owns the question and whose servers are left out. Nothing is ever asked of the servers themselves.
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
    """asks: of each Prometheus; servers that several of them watch count several times, as their
    demand does. models: those that may have such servers. own: addresses of Shoal's engines.
    counts: model -> servers, written here; what is not known is not changed."""

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
        """Ask every few real seconds until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Ask once for every model."""
        own = frozenset(self._own())
        for model in self._models():
            try:
                answers = await asyncio.gather(
                    *(asyncio.to_thread(ask, _QUERY.format(model=model)) for ask in self._asks)
                )
                found = [str(one["metric"]["instance"]) for answer in answers for one in answer]
            except Exception as error:  # whatever a client raises: their number is not known
                if model not in self._silent:
                    log.warning("servers of %s: Prometheus did not answer: %s", model, error)
                self._silent.add(model)
                continue
            self._silent.discard(model)
            self._counts[model] = sum(address not in own for address in found)
