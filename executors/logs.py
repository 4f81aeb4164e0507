"""Logs of serving-plane processes: to stderr, one line each, in the form that all parts share.

Owns the set-up of the root logger. Kafka clients tell of every retry and retry by themselves, so
they are heard at debug level only.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from topics.log_format import DEFAULT_LEVEL, FORMAT, LEVELS, MSEC_FORMAT, TIME_FORMAT


def add_log_level(parser: argparse.ArgumentParser) -> None:
    """The option --log-level."""
    parser.add_argument("--log-level", default=DEFAULT_LEVEL, choices=LEVELS)


def log_to_stderr(level: str) -> None:
    """Set up this process: our messages from `level` on, libraries from warning on."""
    formatter = logging.Formatter(FORMAT)
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
