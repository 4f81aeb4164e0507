"""Micro-batches of a partition of `telemetry`, and the merged records of each.

Window workers and controllers share this module. Append times alone separate micro-batches, so
every process that reads the partition from the same start computes equal merged records.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoscaler.estimate.duplicates import AppliedSequences
from streams.clock import Times, of_append
from streams.ports.telemetry_merge import merged
from streams.ports.telemetry_signed import read_signed
from topics.demand import Demand
from topics.macs import Verifier
from topics.telemetry_columns import SEQUENCE, SourceName, TelemetryBatch
from topics.time_base import TimeBase

PAUSE_MS = 200
"""Domain ms without an append that end a micro-batch. Gateways report at whole seconds."""
_MARGIN_S = 0.005
_MOST_PRODUCERS = 2000

OnInvalid = Callable[[int, bytes, str, bool], None]
"""Called with (offset, value, reason, whether the signature was refused) of an invalid record."""


@dataclass(slots=True)
class MicroBatch:
    """Records that the broker appended to one partition within one domain second, without a pause.

    log_ms: log times (`of_append`). came_s: monotonic time in s at which the last one was read.
    """

    offsets: list[int] = field(default_factory=list)
    append_ms: list[int] = field(default_factory=list)
    log_ms: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    headers: list[Any] = field(default_factory=list)
    came_s: float = 0.0


class PartitionMerger:
    """Merges the records of one partition.

    verifier: checks the signatures of gateways. A record that a gateway sent twice counts once, as
    long as this merger read the first one too.
    """

    def __init__(
        self,
        partition: int,
        time_base: TimeBase,
        verifier: Verifier,
        on_invalid: OnInvalid,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partition = partition
        self._time_base = time_base
        self._verifier = verifier
        self._on_invalid = on_invalid
        self._monotonic_s = monotonic_s
        self._pause_s = PAUSE_MS / 1000.0 / time_base.speed + _MARGIN_S
        self._open: MicroBatch | None = None
        self._unmerged_from = -1
        # Of each producer; the producer that was silent longest is first.
        self._applied: dict[SourceName, AppliedSequences] = {}

    def take(self, offset: int, append_ms: int, value: bytes, headers: Any) -> MicroBatch | None:
        """Add a record. Returns the micro-batch that it ended."""
        log_ms = of_append(self._time_base, append_ms)
        ended, batch = None, self._open
        if batch is not None and not _continues(batch.log_ms[-1], log_ms):
            ended, batch = batch, None
        if batch is None:
            batch = self._open = MicroBatch()
        batch.offsets.append(offset)
        batch.append_ms.append(append_ms)
        batch.log_ms.append(log_ms)
        batch.values.append(value)
        batch.headers.append(headers)
        batch.came_s = self._monotonic_s()
        return ended

    @property
    def open(self) -> MicroBatch | None:
        """The open micro-batch."""
        return self._open

    def is_idle(self) -> bool:
        """Whether the open micro-batch ended, if the broker has no unread record."""
        batch = self._open
        return batch is not None and self._monotonic_s() - batch.came_s > self._pause_s

    def end(self, end_offset: int) -> MicroBatch | None:
        """The open micro-batch, which ends now. None if there is none, or if the broker has an
        unread record before `end_offset`.

        Query `end_offset` after `is_idle`, because this process itself may have been suspended.
        """
        batch = self._open
        if batch is None or batch.offsets[-1] + 1 < end_offset or not self.is_idle():
            return None
        self._open = None
        return batch

    def merge(self, batch: MicroBatch) -> list[Demand]:
        """The merged records of `batch`. Call it for every batch, in order."""
        found = read_signed(batch.values, batch.headers, batch.append_ms, self._verifier)
        for at, why in {**found.bad, **found.refused}.items():
            refused = at in found.refused
            self._on_invalid(batch.offsets[at], batch.values[at], str(why), refused)
        log_ms = np.array(batch.log_ms, np.int64)
        if found.places is not None:
            log_ms = log_ms[list(found.places)]
        records, log_ms = self._new(found.records, log_ms)
        if self._unmerged_from < 0:
            self._unmerged_from = batch.offsets[0]
        if not len(records):
            return []
        offsets = self._unmerged_from, batch.offsets[-1]
        self._unmerged_from = batch.offsets[-1] + 1
        return merged(self._partition, offsets, records, log_ms)

    def _new(self, records: TelemetryBatch, log_ms: Times) -> tuple[TelemetryBatch, Times]:
        """The records without copies of earlier ones."""
        names = set(records.names)
        for name in sorted(names):
            known = self._applied.pop(name, None)
            self._applied[name] = known or AppliedSequences()
        while len(self._applied) > max(_MOST_PRODUCERS, len(names)):
            del self._applied[next(iter(self._applied))]
        new = [
            at
            for at, (name, sequence) in enumerate(
                zip(records.names, records.numbers[:, SEQUENCE].tolist(), strict=True)
            )
            if self._applied[name].is_new(sequence)
        ]
        return (records, log_ms) if len(new) == len(records) else (records.select(new), log_ms[new])


def _continues(last_ms: int, log_ms: int) -> bool:
    """Whether a record at `log_ms` belongs to the micro-batch whose last record is at `last_ms`. It
    does not if the broker's clock was set back."""
    return last_ms <= log_ms < last_ms + PAUSE_MS and last_ms // 1000 == log_ms // 1000
