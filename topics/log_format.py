"""What a log line of any process looks like, so that logs of both planes can be read together.

Values only: each edge sets its own logging up with them.
"""

from __future__ import annotations

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""2026-11-20T14:03:07.219Z WARNING streams.controller.tick_loop: message"""

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
MSEC_FORMAT = "%s.%03dZ"
"""UTC, to the millisecond."""

LEVELS = ("debug", "info", "warning", "error")
"""What --log-level takes; the first one lets libraries speak too."""

DEFAULT_LEVEL = "info"
