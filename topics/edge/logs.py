"""Set up logs of a process: to stderr, in one common form.

Kafka clients repeat the message about an outage many times a second. A process either limits
repeated messages, or reports outages itself and hides the messages of Kafka clients.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from topics.log_format import DEFAULT_LEVEL, FORMAT, LEVELS, MSEC_FORMAT, TIME_FORMAT
from topics.printable import printable, printable_lines

AGAIN_S = 30.0
FORMS = ("text", "json")
_MOST_KNOWN = 500


class RepeatFilter(logging.Filter):
    """Passes a message once in `again_s` seconds. Logger and text without arguments identify a
    message.
    """

    def __init__(
        self, again_s: float = AGAIN_S, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._again_s = again_s
        self._monotonic_s = monotonic_s
        self._last_s: dict[tuple[str, object], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` passes the filter."""
        key, now_s = (record.name, record.msg), self._monotonic_s()
        last_s = self._last_s.get(key)
        if last_s is not None and now_s - last_s < self._again_s:
            return False
        if len(self._last_s) >= _MOST_KNOWN:
            self._last_s.clear()
        self._last_s[key] = now_s
        return True


def add_log_options(parser: argparse.ArgumentParser) -> None:
    """Add the options --log-level and --log-format to `parser`."""
    parser.add_argument(
        "--log-level",
        default=DEFAULT_LEVEL,
        choices=LEVELS,
        help=f"least severity that is logged (default {DEFAULT_LEVEL})",
    )
    parser.add_argument(
        "--log-format", default=FORMS[0], choices=FORMS, help="of log lines (default %(default)s)"
    )


def log_options_argv(given: argparse.Namespace) -> tuple[str, ...]:
    """The log options as arguments of another process."""
    return "--log-level", given.log_level, "--log-format", given.log_format


class PrintableFormatter(logging.Formatter):
    """One printable line per message; tracebacks keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  a method of logging
        """The line of a log record, without a traceback."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  a method of logging
        """The traceback as printable lines."""
        return printable_lines(super().formatException(ei))


class JsonLines(PrintableFormatter):
    """One JSON object per line: at, level, logger, message, and error with the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """`record` as a JSON line."""
        line = {
            "at": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


def log_to_stderr(
    level: str = DEFAULT_LEVEL, form: str = FORMS[0], *, limit_repeats: bool = False
) -> None:
    """Set up logging of this process: messages of Shoal from `level`, messages of libraries from
    warning. form: one of FORMS. limit_repeats: whether to drop repeated messages instead of the
    messages of Kafka clients (at level debug all appear)."""
    formatter = JsonLines() if form == "json" else PrintableFormatter(FORMAT)
    formatter.converter = time.gmtime
    formatter.default_time_format, formatter.default_msec_format = TIME_FORMAT, MSEC_FORMAT
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    if limit_repeats:
        handler.addFilter(RepeatFilter())
    ours = logging.getLevelNamesMapping()[level.upper()]
    libraries = ours if level == LEVELS[0] else max(ours, logging.WARNING)
    logging.basicConfig(level=libraries, handlers=[handler])
    logging.captureWarnings(True)
    for package in ("streams", "executors", "autoscaler", "topics", "__main__"):
        logging.getLogger(package).setLevel(ours)
    if level != LEVELS[0] and not limit_repeats:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
