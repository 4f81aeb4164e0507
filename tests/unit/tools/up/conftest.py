"""The example's cluster, and an empty picture of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from streams.files.shoal_yaml import load_config
from streams.tools.up.run_state import Picture


@pytest.fixture
def cluster() -> Cluster:
    """The example's cluster."""
    return load_config(Path(__file__).parents[2] / "files" / "sample.yaml").cluster


@pytest.fixture
def picture(cluster: Cluster) -> Picture:
    """An empty picture of it."""
    return Picture(cluster)
