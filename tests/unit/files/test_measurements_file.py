"""The measurements file: required and optional keys of an entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.files.measurements_file import read_measurements
from streams.files.user_errors import UserError


def test_only_optional_keys_may_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    file.write_text('[{"gpu": "L4"}]')
    with pytest.raises(UserError) as refused:
        read_measurements(file)
    needed, _, others = str(refused.value).partition(", optional: ")
    assert "measurement 1: required keys: ['architecture', " in needed
    assert others == "['first_token_ms']"
