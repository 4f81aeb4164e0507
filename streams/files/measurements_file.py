"""Read and write the file of a user's own measurements, named by `measurements:` in `shoal.yaml`.

Form: JSON, a list of results of `shoal profile import` and `shoal profile measure`. The file is
replaced atomically, through a temporary file.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields
from pathlib import Path

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile_sources import check_measurement, with_measurements
from streams.files.csv_rows import cause_of
from streams.files.user_errors import UserError

_KEYS = {field.name for field in fields(Measurement)}
_NEEDED = {field.name for field in fields(Measurement) if field.default is MISSING}


def read_measurements(path: Path) -> tuple[Measurement, ...]:
    """The measurements in `path`. UserError: the file is invalid."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({cause_of(error)})") from None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from None
    if not isinstance(raw, list):
        raise UserError(f"{path}: a list of measurements is expected")
    found = []
    for number, one in enumerate(raw, start=1):
        if not isinstance(one, dict) or not _NEEDED <= set(one) <= _KEYS:
            raise UserError(
                f"{path}: measurement {number}: required keys: {sorted(_NEEDED)}, "
                f"optional: {sorted(_KEYS - _NEEDED)}"
            )
        try:
            key = tuple(int(n) for n in one["architecture"])
            if len(key) != 4:
                raise InvalidValue("architecture", one["architecture"], "four numbers")
            found.append(check_measurement(Measurement(**{**one, "architecture": key})))
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: measurement {number}: {error}") from None
    return tuple(found)


def add_measurement(path: Path, found: Measurement) -> None:
    """Write `found` into `path`. It replaces the measurement of the same model, GPU and width, if
    there is one."""
    known = read_measurements(path) if path.exists() else ()
    profile = with_measurements(default_profile(), [*known, found])
    text = json.dumps([asdict(one) for one in profile.measurements], indent=1) + "\n"
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({cause_of(error)})") from None
