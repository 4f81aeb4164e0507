"""The last records of each key in a section of a partition, without those that others replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KEPT_PER_KEY = 3

Group = tuple[object, bool]
"""(key, or offset of a record of its own; whether the signature is valid)"""


class Span:
    """Raw records of a section of a partition: the last three of each `kept_as(record)`.

    The last record of a key may be invalid or come from a former leader. oldest_ms, newest_ms:
    append times. count: number of records read.
    """

    def __init__(self, kept_as: Callable[[Any], Group]) -> None:
        self._kept_as = kept_as
        self._last: dict[Group, list[Any]] = {}
        self.oldest_ms = 0
        self.newest_ms = 0
        self.count = 0

    @property
    def kept(self) -> list[Any]:
        """The stored records, in the order of the partition. Those without a valid signature that
        a later valid record of their key replaces are left out."""
        valid = {key: last[-1].offset for (key, signed), last in self._last.items() if signed}
        kept = (
            message
            for (key, signed), last in self._last.items()
            for message in last
            if signed or message.offset > valid.get(key, -1)
        )
        return sorted(kept, key=lambda message: message.offset)

    def add(self, messages: list[Any]) -> None:
        """Append later records of the partition to this section."""
        self.count += len(messages)
        if messages:
            self.oldest_ms = self.oldest_ms or messages[0].timestamp
            self.newest_ms = max(self.newest_ms, messages[-1].timestamp)
        for message in messages:
            last = self._last.setdefault(self._kept_as(message), [])
            last.append(message)
            del last[:-_KEPT_PER_KEY]

    def then(self, later: Span) -> Span:
        """Append the records of the following section `later` to this section, and return it."""
        count, oldest_ms = self.count + later.count, self.oldest_ms or later.oldest_ms
        self.add(later.kept)
        self.count, self.oldest_ms = count, oldest_ms
        self.newest_ms = max(self.newest_ms, later.newest_ms)
        return self

    def reaches(self, since_ms: int, rounds: int) -> bool:
        """Whether the section begins before `since_ms`, or has at least `rounds` records of each
        key on average.
        """
        return 0 < self.oldest_ms <= since_ms or self.count >= rounds * max(1, len(self._last))
