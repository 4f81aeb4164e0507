"""Logs of serving-plane processes: to stderr, one line each, in the form that all parts share.

Owns the set-up of the root logger. Kafka clients tell of every retry and retry by themselves, so
they are heard at debug level only.
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
    """The option --log-level."""
    parser.add_argument("--log-level", default=DEFAULT_LEVEL, choices=LEVELS)


class PrintableFormatter(logging.Formatter):
    """One line a message, whoever's words it holds; of tracebacks the lines stay."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  a method of logging
        """The line without a traceback."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  a method of logging
        """The traceback."""
        return printable_lines(super().formatException(ei))


def log_to_stderr(level: str) -> None:
    """Set up this process: our messages from `level` on, libraries from warning on."""
    formatter = PrintableFormatter(FORMAT)
    formatter.converter = time.gmtime
    formatter.default_time_format, formatter.default_msec_format = TIME_FORMAT, MSEC_FORMAT
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    ours = logging.getLevelNamesMapping()[level.upper()]
    libraries = ours if level == LEVELS[0] else max(ours, logging.WARNING)
    logging.basicConfig(level=libraries, handlers=[handler])
    for package in ("executors", "autoscaler", "__main__"):
        logging.getLogger(package).setLevel(ours)
    if level != LEVELS[0]:
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
