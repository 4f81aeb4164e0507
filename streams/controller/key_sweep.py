"""Deletes keys without an owner from the compacted topics (`topics.name_life.KEYS`).

Such keys remain from names that are gone, or another process wrote them. Every controller notes
them as it reads; only the leader deletes. Memory is bounded: above the limit, the topic is read
again once the noted keys are deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.state.controller_state import ControllerState
from streams.loop.control_state import ControlState
from streams.loop.declared_names import DeclaredNames
from streams.ports.actuator import Publisher
from topics.name_life import KEYS
from topics.topic_table import NAMES, PLANS, KeyDeletion

MOST_BYTES = 4 * 1024 * 1024
"""Maximum memory of the noted keys of one topic, about 25,000 node names."""
_BYTES_PER_KEY = 120
_AT_ONCE = 2000


class KeyOwners:
    """Whether a key belongs to a name in use. state: returns the state of the last tick."""

    def __init__(
        self, known: DeclaredNames, latest: ControlState, state: Callable[[], ControllerState]
    ) -> None:
        self._known = known
        self._state = state
        self._own: dict[str, Callable[[str], bool]] = {
            "assignments": self._has_node,
            "status": self._has_node,
            "routes": lambda key: key in known.models() or key in state().published.routes,
            "services": lambda key: key in latest.declared.services,
            "controls": lambda key: key in latest.controls,
            "ledger": lambda key: key in latest.desired.ledger,
            "supply.availability": known.has_pool,
            "supply.prices": known.has_pool,
            "leadership": lambda key: key == "claim",
            NAMES.name: lambda key: key == "services",
            PLANS.name: lambda key: key == "cluster",
        }

    def __call__(self, topic_name: str, key: bytes) -> bool:
        try:
            return self._own[topic_name](key.decode())
        except UnicodeDecodeError:
            return False

    def _has_node(self, node: str) -> bool:
        return self._known.declares_node(node) or node in self._state().published.assignments


class KeySweep:
    """The noted keys. owns: as `KeyOwners`. reread: called with the short name of a topic that must
    be read again. Times are monotonic seconds."""

    def __init__(self, owns: Callable[[str, bytes], bool], publisher: Publisher) -> None:
        self._owns = owns
        self._publisher = publisher
        self.reread: Callable[[str], None] = lambda _topic: None  # set by the composition
        self._noted: dict[str, dict[bytes, float]] = {name: {} for name in KEYS}
        self._bytes = dict.fromkeys(KEYS, 0)
        self._overflowed: set[str] = set()
        self.deleted = 0

    def __len__(self) -> int:
        return sum(map(len, self._noted.values()))

    def note(self, topic_name: str, key: bytes | None, now_s: float) -> None:
        """Note a record with `key` that was read now, if nothing owns the key."""
        noted = self._noted.get(topic_name)
        if noted is None or key is None or (key not in noted and self._owns(topic_name, key)):
            return
        if key not in noted:
            if self._bytes[topic_name] + len(key) + _BYTES_PER_KEY > MOST_BYTES:
                self._overflowed.add(topic_name)
                return
            self._bytes[topic_name] += len(key) + _BYTES_PER_KEY
        noted[key] = now_s

    def forget(self, topic_name: str, key: bytes | None) -> None:
        """Note that `key` was deleted from the topic."""
        if self._noted.get(topic_name, {}).pop(key or b"", None) is not None:
            self._bytes[topic_name] -= len(key or b"") + _BYTES_PER_KEY

    def sweep(self, now_s: float) -> None:
        """Delete noted keys that still have no owner and were silent for the time of their topic.
        Only a leader may call this."""
        left = _AT_ONCE
        for name, noted in self._noted.items():
            due = [key for key, at_s in noted.items() if now_s - at_s >= KEYS[name].silent_s]
            for key in due[:left]:
                self.forget(name, key)
                if not self._owns(name, key):
                    self._publisher.put(KeyDeletion(name, key))
                    self.deleted += 1
                    left -= 1
            if not noted and name in self._overflowed:
                self._overflowed.discard(name)
                self.reread(name)
