"""Read and write profile files; each error is one line.

`autoscaler.performance.profile_codec` defines the form of the files.
"""

from __future__ import annotations

from pathlib import Path

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_codec import decode, encode
from streams.files.csv_rows import cause_of
from streams.files.user_errors import UserError


def read_profile(path: Path) -> Profile:
    """The profile in `path`. UserError: the file is invalid."""
    try:
        return decode(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({cause_of(error)})") from None
    except InvalidValue as error:
        raise UserError(f"{path}: {error}") from None


def write_profile(path: Path, profile: Profile) -> None:
    """Write `profile` to `path`. UserError: the file cannot be written."""
    try:
        path.write_text(encode(profile), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({cause_of(error)})") from None
