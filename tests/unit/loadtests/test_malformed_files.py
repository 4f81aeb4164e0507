"""A damaged user file gives either a value or one line that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.malformed_files import KINDS, read_trace, run
from streams.files.feed_files import read_feed
from streams.files.user_errors import UserError


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_gives_a_value_or_one_line(kind: str, tmp_path: Path) -> None:
    """Some files must be accepted: otherwise a reader that refuses every file would pass. `python
    -m loadtests.malformed_files` tries many more.
    """
    faults, good = run(kind, 300, 11, tmp_path)
    assert faults == []
    assert 10 < good < 290


def test_a_reader_that_raises_another_error_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("time")

    monkeypatch.setitem(KINDS, "traces", (KINDS["traces"][0], broken))
    faults, good = run("traces", 3, 1, tmp_path)
    assert len(faults) == 3
    assert not good
    assert "KeyError" in faults[0]


@pytest.mark.parametrize("data", [b",", b'"', b'""\n', b"\xef\xbb\xbf", b"PAR1"])
def test_a_file_without_a_column_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"holds no column|empty|Parquet"):
        read_trace(path, 0, None)  # type: ignore[arg-type]


def test_a_long_value_is_shown_by_its_beginning() -> None:
    with pytest.raises(UserError) as caught:
        read_feed("prices", b"us/l4/spot: " + b"x" * 9000, "f", 5)
    assert len(str(caught.value)) < 700
