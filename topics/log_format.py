"""The log line format of all processes, so that their logs can be merged.

Each process configures its own logging with these values.
"""

from __future__ import annotations

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Example: 2026-11-20T14:03:07.219Z WARNING streams.loop.tick_loop: message"""

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
MSEC_FORMAT = "%s.%03dZ"
"""UTC, to the millisecond."""

LEVELS = ("debug", "info", "warning", "error")
"""Values of --log-level; the first also enables the logs of libraries."""

DEFAULT_LEVEL = "info"
