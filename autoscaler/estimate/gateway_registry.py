"""The gateways behind the records: which of their records are known, and each one's last word.

Owns the numbers that stand for models, gateways and boots. Must not know any clock, nor windows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoscaler.estimate.duplicates import Producer
from autoscaler.estimate.window_stats import GatewaySeen
from autoscaler.performance.numba_decorators import compiled
from topics.telemetry import COUNTS
from topics.telemetry_columns import IN_FLIGHT, LEAVING, ROUTE_GENERATION, Name

Numbers = NDArray[np.int64]

_ARRIVALS, _COMPLETIONS = COUNTS.index("arrivals"), COUNTS.index("completions")
_NEVER = -(2**62)
_MODEL, _PLACE, _NEWEST_MS = range(3)  # of a boot
_BOOT, _SEEN_MS, _SERVED_MS, _IN_FLIGHT, _GENERATION, _LEFT = range(6)  # of a gateway
_UNHEARD = (-1, _NEVER, 0, 0, 0, 0)


class Gateways:
    """Gateways by model, and their boots, which are the producers of records. Models are numbered
    from 1 as they come, and the numbers of models that were let go are used again; number 0 is
    none."""

    def __init__(self) -> None:
        self.models: dict[str, int] = {}
        self._producers: dict[Name, Producer] = {}
        self._boots = np.zeros((16, 3), np.int64)
        self._names: list[Name] = []
        self._words = np.zeros((16, 6), np.int64)
        self._places: dict[tuple[str, str], int] = {}
        # Numbers of boots; places of gateways; numbers of models.
        self._free: tuple[list[int], list[int], list[int]] = [], [], []
        self._sorted: Numbers | None = None  # places, by model and name

    @property
    def numbers(self) -> int:
        """Numbers of models are below."""
        return len(self.models) + len(self._free[2]) + 1

    def producers(self, names: Sequence[Name]) -> list[Producer]:
        """Who said each of these."""
        known = self._producers
        return [known.get(name) or self._new(name) for name in names]

    def boots_of(self, model: str) -> int:
        """How many boots of gateways of `model` are remembered."""
        return sum(name[0] == model for name in self._producers)

    def models_of(self, boots: Numbers) -> Numbers:
        """The model of each boot."""
        found: Numbers = self._boots[boots, _MODEL]
        return found

    def heard(self, boots: Numbers, ends_ms: Numbers) -> None:
        """Records of these boots whose spans ended then were counted."""
        _heard(self._boots, boots, ends_ms)

    def hear(self, boots: Numbers, ends_ms: Numbers, numbers: Numbers) -> None:
        """Take what these records say as the last words of their gateways, where none is newer.
        numbers: as in `Reported`. After it signed off nothing of a boot is taken."""
        _hear(self._boots, self._words, boots, ends_ms, numbers)

    def seen(self, models: Sequence[int], now_ms: int, since_ms: int) -> list[list[GatewaySeen]]:
        """Of each of `models` the gateways whose last word is not older than `since_ms` and no
        sign-off, by name."""
        if self._sorted is None:
            self._sorted = np.array([self._places[key] for key in sorted(self._places)], np.int64)
        words = self._words[self._sorted]
        words = words[(words[:, _SEEN_MS] >= since_ms) & (words[:, _LEFT] == 0)]
        found: dict[int, list[GatewaySeen]] = {model: [] for model in models}
        owners = self._boots[words[:, _BOOT], _MODEL].tolist()
        for model, (boot, seen_ms, served_ms, in_flight, generation, _) in zip(
            owners, words.tolist(), strict=True
        ):
            if model in found:
                _, gateway, name = self._names[boot]
                age_ms = max(0, now_ms - seen_ms)
                found[model].append(
                    GatewaySeen(gateway, name, seen_ms, in_flight, generation, age_ms, served_ms)
                )
        return [found[model] for model in models]

    def forget(self, before_ms: int) -> None:
        """Forget boots that said nothing since then."""
        newest = self._boots[:, _NEWEST_MS].tolist()
        dead = [name for name, boot in self._producers.items() if newest[boot.number] < before_ms]
        if not dead:
            return
        gone = [self._producers.pop(name).number for name in dead]
        self._free[0].extend(gone)
        self._words[np.isin(self._words[:, _BOOT], gone)] = _UNHEARD
        alive = Counter((model, gateway) for model, gateway, _ in self._producers)
        for key in [key for key in self._places if key not in alive]:
            self._free[1].append(self._places.pop(key))
        self._sorted = None

    def unspoken(self) -> set[str]:
        """Models that no boot is remembered of."""
        return self.models.keys() - {model for model, _, _ in self._producers}

    def let_go(self, model: str) -> int:
        """Forget an unspoken model; its number, which the next model that comes may get."""
        number = self.models.pop(model)
        self._free[2].append(number)
        return number

    def _new(self, name: Name) -> Producer:
        model, gateway, _ = name
        number = self.models.get(model)
        if number is None:
            number = self._free[2].pop() if self._free[2] else self.numbers
            self.models[model] = number
        place = self._places.get((model, gateway))
        if place is None:
            place = self._free[1].pop() if self._free[1] else len(self._places)
            if place == len(self._words):
                self._words = np.pad(self._words, ((0, place), (0, 0)))
            self._words[place] = _UNHEARD
            self._places[model, gateway] = place
            self._sorted = None
        if self._free[0]:
            boot = self._free[0].pop()
            self._names[boot] = name
        else:
            boot = len(self._names)
            self._names.append(name)
            if boot == len(self._boots):
                self._boots = np.pad(self._boots, ((0, boot), (0, 0)))
        self._boots[boot] = number, place, _NEVER
        found = self._producers[name] = Producer(boot)
        return found


@compiled
def _heard(known: Numbers, boots: Numbers, ends_ms: Numbers) -> None:
    """As `Gateways.heard`; known: a row for each boot."""
    for at in range(len(boots)):
        known[boots[at], _NEWEST_MS] = max(known[boots[at], _NEWEST_MS], ends_ms[at])


@compiled
def _hear(
    known: Numbers, words: Numbers, boots: Numbers, ends_ms: Numbers, numbers: Numbers
) -> None:
    """As `Gateways.hear`; known: a row for each boot, words: for each gateway. Each tick, of few
    records: compiled for the sake of these."""
    _heard(known, boots, ends_ms)
    fits = np.empty(len(boots), np.bool_)  # not of boots that signed off before
    leaves_at = np.full(len(known), len(boots))
    for at in range(len(boots)):
        boot, word = boots[at], words[known[boots[at], _PLACE]]
        fits[at] = at <= leaves_at[boot] and (word[_LEFT] == 0 or word[_BOOT] != boot)
        if numbers[at, LEAVING] and leaves_at[boot] == len(boots):
            leaves_at[boot] = at
    for at in ends_ms.argsort(kind="mergesort"):
        word, said = words[known[boots[at], _PLACE]], numbers[at]
        if fits[at] and (said[_ARRIVALS] or said[_COMPLETIONS] or said[IN_FLIGHT]):
            word[_SERVED_MS] = max(word[_SERVED_MS], ends_ms[at])
        if fits[at] and ends_ms[at] >= word[_SEEN_MS]:
            word[_BOOT], word[_SEEN_MS] = boots[at], ends_ms[at]
            word[_IN_FLIGHT], word[_GENERATION] = said[IN_FLIGHT], said[ROUTE_GENERATION]
            word[_LEFT] = said[LEAVING]
    for at in range(len(boots)):  # others of it may be dated a little later than its sign-off
        word = words[known[boots[at], _PLACE]]
        if numbers[at, LEAVING] and word[_BOOT] == boots[at]:
            word[_LEFT] = 1
