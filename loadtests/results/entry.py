"""An entry of the registry of results: what is measured, for which seeds, and for which page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Figures = dict[str, Any]
"""Numbers and texts by name; mappings and lists of them may be nested."""
NO_CHANCE = (0,)
"""The seeds of a measurement without random draws."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One result.

    name: of its record, and the argument of `make results`. page: in docs/results, without suffix.
    about: what is measured, for the list of results. measure: computes the figures of one seed.
    seeds: all seeds; `NO_CHANCE` if nothing is drawn. inputs: files that it reads, relative to the
    root; the packaged profile is always one. tolerance: how far the figures of a further run may be
    from those of the record, as a share of them. by_figure: the same for single figures, by the
    last part of their name. real: runs real processes, and so takes their time and needs a quiet
    machine; `make results` leaves it out unless it is named.
    """

    name: str
    page: str
    about: str
    measure: Callable[[int], Figures]
    seeds: tuple[int, ...] = NO_CHANCE
    inputs: tuple[str, ...] = ()
    tolerance: float = 0.01
    by_figure: Mapping[str, float] = field(default_factory=dict)
    real: bool = False

    @property
    def module(self) -> str:
        """The module of `measure`."""
        found: str = getattr(self.measure, "func", self.measure).__module__
        return found

    def tolerance_of(self, figure: str) -> float:
        """The tolerance of the figure with this full name."""
        return self.by_figure.get(figure.rpartition("/")[2], self.tolerance)
