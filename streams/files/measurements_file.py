"""Read and write the file of a user's own measurements, named by `measurements:` in `shoal.yaml`.

Form: JSON, a list of results of `shoal profile import` and `shoal profile measure`: speeds
(`Measurement`), and KV caches of starts (`MeasuredRoom`). The file is replaced atomically, through
a temporary file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.measurement import Measurement
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile_sources import check_measurement, with_measurements
from streams.files.csv_rows import cause_of
from streams.files.user_errors import UserError

_ROOM = "arguments"
"""The key that distinguishes a KV cache from a speed."""


def read_measurements(path: Path) -> tuple[Measurement, ...]:
    """The measured speeds in `path`. UserError: the file is invalid."""
    found = []
    for number, one in _entries(path):
        if _ROOM in one:
            continue
        _check_keys(path, number, one, Measurement)
        try:
            key = tuple(int(n) for n in one["architecture"])
            if len(key) != 4:
                raise InvalidValue("architecture", one["architecture"], "four numbers")
            found.append(check_measurement(Measurement(**{**one, "architecture": key})))
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: measurement {number}: {error}") from None
    return tuple(found)


def read_rooms(path: Path) -> tuple[MeasuredRoom, ...]:
    """The measured KV caches in `path`. UserError: the file is invalid."""
    found = []
    for number, one in _entries(path):
        if _ROOM not in one:
            continue
        _check_keys(path, number, one, MeasuredRoom)
        try:
            gpu = catalog.gpu(str(one["gpu"])).name
            found.append(MeasuredRoom(**{**one, "gpu": gpu, _ROOM: str(one[_ROOM])}))
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: measurement {number}: {error}") from None
    return tuple(found)


def add_measurement(path: Path, found: Measurement) -> None:
    """Write `found` into `path`. It replaces the measurement of the same model, GPU and width, if
    there is one."""
    known = read_measurements(path) if path.exists() else ()
    profile = with_measurements(default_profile(), [*known, found])
    _write(path, profile.measurements, read_rooms(path) if path.exists() else ())


def add_room(path: Path, found: MeasuredRoom) -> None:
    """Write `found` into `path`. It replaces the KV cache of the same settings, GPU and number of
    GPUs, if there is one."""
    speeds = read_measurements(path) if path.exists() else ()
    rooms = read_rooms(path) if path.exists() else ()
    key = found.arguments, found.gpu, found.gpus
    others = [one for one in rooms if (one.arguments, one.gpu, one.gpus) != key]
    _write(path, speeds, [*others, found])


def _entries(path: Path) -> list[tuple[int, dict[str, Any]]]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({cause_of(error)})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(raw, list):
        raise UserError(f"{path}: a list of measurements is expected")
    for number, one in enumerate(raw, start=1):
        if not isinstance(one, dict):
            _check_keys(path, number, {}, Measurement)
    return list(enumerate(raw, start=1))


def _check_keys(
    path: Path, number: int, one: dict[str, Any], kind: type[Measurement] | type[MeasuredRoom]
) -> None:
    known = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not needed <= set(one) <= known:
        raise UserError(
            f"{path}: measurement {number}: required keys: {sorted(needed)}, "
            f"optional: {sorted(known - needed)}"
        )


def _write(path: Path, speeds: Sequence[Measurement], rooms: Sequence[MeasuredRoom]) -> None:
    entries = [*map(asdict, speeds), *map(asdict, rooms)]
    text = json.dumps(entries, indent=1) + "\n"
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({cause_of(error)})") from None
