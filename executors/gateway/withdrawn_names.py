"""Names that are no longer declared, so that their requests get 404 at once and older routes of
them stay out. A name leaves when the controller deletes its routes; a name that this gateway's
options declare stays, because the gateway would otherwise hold requests for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from topics.records import Routes

MOST_NAMES = 10_000


class WithdrawnNames:
    """The withdrawn routes by model. declared: models that the gateway's options declare."""

    def __init__(self, declared: Collection[str] = ()) -> None:
        self._declared = declared
        self._routes: dict[str, Routes] = {}

    def __contains__(self, model: str) -> bool:
        return model in self._routes

    def __iter__(self) -> Iterator[Routes]:
        return iter(self._routes.values())

    def supersedes(self, routes: Routes) -> bool:
        """Whether `routes` are older than the withdrawal of their model."""
        known = self._routes.get(routes.model)
        return known is not None and order_of(routes) < order_of(known)

    def add(self, routes: Routes) -> None:
        """Keep withdrawn `routes`. The oldest name is dropped above `MOST_NAMES`."""
        self._routes[routes.model] = routes
        if len(self._routes) > MOST_NAMES:
            del self._routes[next(iter(self._routes))]

    def declare_again(self, model: str) -> None:
        """Remove `model`, because newer routes serve it."""
        self._routes.pop(model, None)

    def finalize(self, model: str) -> None:
        """Remove `model`, whose routes were deleted, unless the gateway's options declare it."""
        if model not in self._declared:
            self._routes.pop(model, None)

    def distrust(self, highest_token: int) -> None:
        """Remove withdrawals that no leader wrote: their tokens are above `highest_token`."""
        for routes in list(self._routes.values()):
            if routes.leader_token > highest_token:
                del self._routes[routes.model]


def order_of(routes: Routes) -> tuple[int, int]:
    """Sort key of the routes of one model, by age."""
    return routes.leader_token, routes.generation
