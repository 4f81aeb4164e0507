"""An empty picture of the example's cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.files.config import load_config
from streams.up.picture import Picture


@pytest.fixture
def picture() -> Picture:
    """An empty picture of the example's cluster."""
    path = Path(__file__).parent.parent / "files" / "sample.yaml"
    return Picture(load_config(path).cluster)
