"""Logging of serving-plane processes: to stderr, one line per message, in the common format. The
logs of Kafka clients appear only at debug level, because they log every retry.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import Any

from topics.log_format import DEFAULT_LEVEL, FORMAT, LEVELS, MSEC_FORMAT, TIME_FORMAT
from topics.printable import printable, printable_lines


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """Add the option --log-level."""
    parser.add_argument("--log-level", default=DEFAULT_LEVEL, choices=LEVELS)


class PrintableFormatter(logging.Formatter):
    """Makes each message one printable line, whatever text the message contains. Tracebacks keep
    their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  a method of logging
        """The line without a traceback."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  a method of logging
        """The traceback."""
        return printable_lines(super().formatException(ei))


def log_to_stderr(level: str) -> None:
    """Set up logging: own packages from `level`, libraries from warning."""
    formatter = PrintableFormatter(FORMAT)
    formatter.converter = time.gmtime
    formatter.default_time_format, formatter.default_msec_format = TIME_FORMAT, MSEC_FORMAT
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    ours = logging.getLevelNamesMapping()[level.upper()]
    libraries = ours if level == LEVELS[0] else max(ours, logging.WARNING)
    logging.basicConfig(level=libraries, handlers=[handler])
    logging.captureWarnings(True)
    for package in ("executors", "autoscaler", "__main__"):
        logging.getLogger(package).setLevel(ours)
    if level != LEVELS[0]:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
