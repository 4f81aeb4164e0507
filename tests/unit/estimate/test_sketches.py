"""Quantiles and means from the sketches of a window."""

import numpy as np

from autoscaler.estimate.sketch_cells import CELLS
from autoscaler.estimate.sketches import SketchStore, bucket_counts
from topics.sketch import LOWEST, WIDTH
from topics.telemetry import SKETCHES


def test_quantiles_and_means_follow_the_rising_buckets_of_the_sketch() -> None:
    sketches = SketchStore(1800)
    sketches.reserve(2)
    place = CELLS + SKETCHES.index("input_lengths") * WIDTH
    cells = np.array([place + 3, place + 70], np.uint32)
    sketches.add(1000, (cells, np.array([5, 2], np.uint32)))
    sketches.add(1010, (cells[:1], np.array([1], np.uint32)))
    seen = sketches.window(60, 1020)
    sketch = seen.sketch("input_lengths", 1)
    assert dict(sketch) == {3 + LOWEST: 6, 70 + LOWEST: 2}
    for one in (sketch, {70 + LOWEST: 2, 3 + LOWEST: 6}):
        buckets, counts = bucket_counts(one)
        assert buckets.tolist() == [3 + LOWEST, 70 + LOWEST]
        assert counts.tolist() == [6, 2]
    assert [one.tolist() for one in bucket_counts(seen.sketch("shapes", 1))] == [[], []]
    assert [one.tolist() for one in bucket_counts({})] == [[], []]
