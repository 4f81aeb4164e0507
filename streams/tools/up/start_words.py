"""Sentences of the start of a run: the parts and instances that it waits for, and how long that may
take. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.explain.quantity_texts import lasting
from streams.plain_text import several
from streams.tools.up.run_state import FleetProgress

_CONTROLLER = "controller"
_PARTS = {
    _CONTROLLER: "the controller",
    "executor": "the executors",
    "gateway": "the gateway",
    "windows": "the window workers",
}
_LONG_S = 4.0
_COMPILES = (
    "the first start on a machine compiles code: about 15 s, and minutes if other programs use the "
    "processor"
)


def starting_words(names: Iterable[str], waited_s: float) -> str:
    """The parts that are not ready. names: of their processes. waited_s: real seconds since their
    start; after some time the sentence says why the controller may take long."""
    kinds = {name.split("-")[0]: name for name in names}
    parts = [words for kind, words in _PARTS.items() if kind in kinds]
    parts += sorted(name for kind, name in kinds.items() if kind not in _PARTS)
    if not parts:
        return "starting"
    *first, last = parts
    listed = f"{', '.join(first)} and {last}" if first else last
    long = _CONTROLLER in kinds and waited_s >= _LONG_S
    return f"starting {listed}" + (f"; {_COMPILES}" if long else "")


def first_fleet_words(progress: FleetProgress, limit_s: float) -> str:
    """The progress of the first fleet. limit_s: real seconds until the wait ends in any case."""
    if not progress.wanted:
        return "waiting for the first fleet: the controller plans it"
    done = f"{progress.ready} of {several(progress.wanted, 'instance')} ready"
    return f"waiting for the first fleet: {done}, at most {lasting(limit_s)}"
