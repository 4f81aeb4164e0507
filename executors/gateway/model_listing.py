"""The answers to `/v1/models`: the models that have routes and that a key may use."""

from __future__ import annotations

import orjson

from executors.gateway.api_keys import AccessControl, ApiKey
from executors.gateway.route_table import RouteTable


class ModelListing:
    """Lists models in OpenAI's format."""

    def __init__(self, table: RouteTable, access: AccessControl) -> None:
        self._table = table
        self._access = access

    def every(self, key: ApiKey | None) -> bytes:
        """All models that `key` may use."""
        entries = [
            self._entry(model)
            for model in sorted(self._table.routers)
            if self._access.may_use(key, model)
        ]
        return orjson.dumps({"object": "list", "data": entries})

    def one(self, name: str, key: ApiKey | None) -> bytes | None:
        """The model with the name or alias `name`; None if it does not exist for `key`."""
        model = self._table.aliases.get(name, name)
        if model not in self._table.routers or not self._access.may_use(key, model):
            return None
        return orjson.dumps(self._entry(model))

    def _entry(self, model: str) -> dict[str, object]:
        routes = self._table.routers[model].routes
        aliases = list(routes.aliases) if routes else []
        root = aliases[0] if aliases else model
        return {"id": model, "object": "model", "created": 0, "owned_by": "shoal", "root": root}
