"""The cluster of the example configuration, and an empty `Picture` of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from streams.files.shoal_yaml import load_config
from streams.tools.up.run_state import Picture


@pytest.fixture
def cluster() -> Cluster:
    """The cluster of the example configuration."""
    return load_config(Path(__file__).parents[2] / "files" / "sample.yaml").cluster


@pytest.fixture
def picture(cluster: Cluster) -> Picture:
    """An empty `Picture` of the example's cluster."""
    return Picture(cluster)
