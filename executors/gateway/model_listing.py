"""The answers to `/v1/models`: models and adapters that have routes and that the client's key may
use."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from executors.gateway.api_keys import AccessControl, ApiKey
from executors.gateway.route_table import RouteTable


class ModelListing:
    """Lists models in OpenAI's format. As in vLLM, an adapter is listed as a model with a
    parent."""

    def __init__(self, table: RouteTable, access: AccessControl) -> None:
        self._table = table
        self._access = access

    def every(self, key: ApiKey | None) -> bytes:
        """All models and adapters that `key` may use."""
        entries = [
            self._entry(*names) for names in self._names() if self._access.may_use(key, *names)
        ]
        return orjson.dumps({"object": "list", "data": entries})

    def one(self, name: str, key: ApiKey | None) -> bytes | None:
        """The model or adapter with the name or alias `name`; None if it does not exist for
        `key`."""
        model, adapter = self._table.resolve(name)
        if model not in self._table.routers or not self._access.may_use(key, model, adapter):
            return None
        return orjson.dumps(self._entry(model, adapter))

    def _names(self) -> Iterator[tuple[str, str]]:
        """(Model, adapter) of every entry; adapter "" for a model itself."""
        for model in sorted(self._table.routers):
            yield model, ""
            routes = self._table.routers[model].routes
            for adapter in routes.adapters if routes is not None else ():
                if self._table.adapters.get(adapter) == model:
                    yield model, adapter

    def _entry(self, model: str, adapter: str) -> dict[str, object]:
        shared = {"object": "model", "created": 0, "owned_by": "shoal"}
        if adapter:
            return {"id": adapter, **shared, "root": adapter, "parent": model}
        routes = self._table.routers[model].routes
        aliases = list(routes.aliases) if routes else []
        return {"id": model, **shared, "root": aliases[0] if aliases else model, "parent": None}
