"""Weekly time windows, such as "mon-fri 08:00-18:00", in a time zone."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo

from autoscaler.domain.validation import InvalidValue

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MIN = 24 * 60
_FORM = re.compile(r"(?:(?P<days>[a-z,-]+)\s+)?(\d\d):(\d\d)-(\d\d):(\d\d)\Z")
_ALLOWED = 'a weekly window such as "mon-fri 08:00-18:00", "sat,sun 10:00-24:00" or "22:00-06:00"'


@dataclass(frozen=True, slots=True)
class Weekly:
    """A weekly window: from `from_min` to `to_min` (minutes after midnight) on `days` (0 = Monday)
    in time zone `zone`.

    If to_min is not above from_min, the window ends on the following day.
    """

    days: tuple[int, ...]
    from_min: int
    to_min: int
    zone: str = "UTC"

    @classmethod
    def parse(cls, text: object, zone: str = "UTC") -> Weekly:
        """The window that `text` describes; without days, every day. Raises InvalidValue if it is
        malformed."""
        match = _FORM.match(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidValue("", text, _ALLOWED)
        from_h, from_m, to_h, to_m = (int(match[k]) for k in range(2, 6))
        if from_h > 23 or from_m > 59 or to_m > 59 or to_h * 60 + to_m > _DAY_MIN:
            raise InvalidValue("", text, _ALLOWED)
        days = _days(match["days"] or "mon-sun", text)
        return cls(days, from_h * 60 + from_m, to_h * 60 + to_m, _zone(zone).key)

    def contains(self, now_ms: int) -> bool:
        """Whether `now_ms`, ms since the epoch, is in the window."""
        at = dt.datetime.fromtimestamp(now_ms / 1000.0, tz=_zone(self.zone))
        minute, day = at.hour * 60 + at.minute, at.weekday()
        if self.from_min < self.to_min:
            return day in self.days and self.from_min <= minute < self.to_min
        before = (day - 1) % 7
        return (day in self.days and minute >= self.from_min) or (
            before in self.days and minute < self.to_min
        )

    def __str__(self) -> str:
        """The text that `parse` accepts, followed by the zone."""
        named = ",".join(DAYS[day] for day in self.days)
        days = "" if len(self.days) == len(DAYS) else f"{named} "
        span = f"{self.from_min // 60:02d}:{self.from_min % 60:02d}"
        return f"{days}{span}-{self.to_min // 60:02d}:{self.to_min % 60:02d} {self.zone}"


def _days(text: str, whole: object) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise InvalidValue("", whole, _ALLOWED)
        start, end = DAYS.index(first), DAYS.index(last or first)
        found |= {(start + k) % 7 for k in range((end - start) % 7 + 1)}
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise InvalidValue("timezone", name, "a name such as Europe/Berlin or UTC") from None
