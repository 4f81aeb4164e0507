"""Times on a command line and in output, in UTC.

The module reads no clock: the current day is an argument.
"""

from __future__ import annotations

import datetime as dt

from streams.files.user_errors import UserError


def moment_ms(option: str, text: str, near_ms: int) -> int:
    """Parse "10:32", "10:32:05" (on the day of `near_ms`), or ISO 8601. Without a zone it is UTC.

    UserError names the option.
    """
    day = dt.datetime.fromtimestamp(near_ms / 1000.0, tz=dt.UTC).date()
    try:
        if "-" not in text:
            found = dt.datetime.combine(day, dt.time.fromisoformat(text))
        else:
            found = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{option} {text}: not a time; allowed: 10:32, 10:32:05 or 2026-01-31T10:32 (UTC)"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=dt.UTC)
    return int(found.timestamp() * 1000)


def clock_words(at_ms: int) -> str:
    """The time of day, e.g. "10:32:05"."""
    return f"{dt.datetime.fromtimestamp(at_ms / 1000.0, tz=dt.UTC):%H:%M:%S}"


def moment_words(at_ms: int) -> str:
    """Date and time, e.g. "2026-01-31 10:32:05"."""
    return f"{dt.datetime.fromtimestamp(at_ms / 1000.0, tz=dt.UTC):%Y-%m-%d %H:%M:%S}"
