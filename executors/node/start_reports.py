"""Start reports: the memory of an engine, read once from the log of its start."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from autoscaler.performance.start_log import read_start
from autoscaler.serving.engine_setup import InvalidValue
from executors.engines.engine_protocol import Load
from topics.engine_start import EngineStart

log = logging.getLogger(__name__)

_MOST_BYTES = 512 * 1024
_LASTING = ("no_kv_memory", "too_long", "states")
"""Refusals that every further start on this node would repeat."""


def read_report(path: Path, instance: str) -> EngineStart | None:
    """The start in the log file `path`; None if it states no memory. Of a long log, only the
    beginning and the end are read."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
            size = file.seek(0, 2)
            if size > _MOST_BYTES:
                file.seek(max(_MOST_BYTES, size - _MOST_BYTES))
                text += b"\n" + file.read(_MOST_BYTES)
    except OSError:
        return None
    try:
        return read_start(text.decode(errors="replace")).start
    except InvalidValue as error:
        if error.field != "log":
            log.warning("%s: %s", instance, error)
        return None


def with_blocks(report: EngineStart | None, load: Load | None) -> EngineStart | None:
    """`report` with the blocks of the KV cache that `load` states, if it states any."""
    if load is None or not load.blocks:
        return report
    return replace(report or EngineStart(), blocks=load.blocks, block_tokens=load.block_tokens)


def repeats(report: EngineStart | None) -> bool:
    """Whether another start on the same node would be refused too."""
    return report is not None and report.refused in _LASTING
