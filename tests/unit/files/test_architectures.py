"""Which files are read for the architecture behind a `source`: records name them too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autoscaler.domain.validation import InvalidValue
from streams.files.model_source import architecture


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * 4_000_000 + b"{}")
    with pytest.raises(InvalidValue, match=r"can be read \(more than 4,000,000 bytes\)"):
        architecture("./config.json", tmp_path)


@pytest.mark.parametrize("place", ["pipe.json", "config.json"])
def test_a_pipe_is_refused_as_it_may_never_end(tmp_path: Path, place: str) -> None:
    """By its own name, and as the config.json of a folder."""
    os.mkfifo(tmp_path / place)
    source = "./" if place == "config.json" else f"./{place}"
    with pytest.raises(InvalidValue, match=r"can be read \(not a regular file\)"):
        architecture(source, tmp_path)
