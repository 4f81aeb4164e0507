"""A controller whose last tick is that of a simulated fleet, with its HTTP interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.integration.console.served_loop import served_loop
from tests.integration.console.staged_states import State, tick_of
from tests.unit.console import console_world
from tests.unit.decide.decide_world import World


@dataclass
class StatesServer:
    """url: of the controller. do: runs a function in the server's thread."""

    url: str
    held: console_world.World
    do: Callable[[Callable[[], Any]], Any]

    def event(self) -> str:
        """Id of the last event."""
        feed = self.held.feed
        return str(self.do(lambda: f"{feed.stream}:{feed.hub.number}"))

    def show(self, state: State, w: World) -> None:
        """Let the controller be in `state`."""

        def change() -> None:
            held = self.held
            held.leads, held.cluster = state.is_led, w.cluster
            held.leader = "ctl-1" if state.is_led else "ctl-2"
            held.loop.latest.declared.refused = dict(state.refused or {})
            held.loop.latest.controls = dict(w.controls)
            held.now_s += 60.0
            done, _ = tick_of(w)
            for watcher in held.loop.watchers:
                watcher(done)
            held.now_s += state.late_s
            held.feed.step()

        self.do(change)


@contextmanager
def served_states() -> Iterator[StatesServer]:
    """A server in a thread, whose leader token is that of the simulated fleets."""
    with served_loop() as do:
        context = console_world.world(token=1)
        held = do(context.__aenter__)
        try:
            yield StatesServer(held.url, held, do)
        finally:
            do(lambda: context.__aexit__(None, None, None))
