"""The grid of decode times against the exact ones."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog
from autoscaler.performance.profile import default_profile
from autoscaler.performance.steps import step_times
from autoscaler.simulation.times import GridTimes


@pytest.mark.parametrize(
    ("model", "gpu", "gpus"),
    [
        ("openai/gpt-oss-20b", "L4", 1),  # sliding window, experts
        ("openai/gpt-oss-20b", "L40S", 1),
        ("meta-llama/Llama-3.1-8B", "L40S", 1),
        ("meta-llama/Llama-3.3-70B-Instruct", "H100", 8),
        ("Qwen/Qwen3-32B", "L40S", 4),
    ],
)
def test_grid_times_are_within_a_thousandth(model: str, gpu: str, gpus: int) -> None:
    node = NodeSlice(catalog.gpu(gpu), gpus)
    exact = step_times(catalog.model(model), node, Phase.AGGREGATED, default_profile())
    grid = GridTimes(exact)
    random = np.random.default_rng(1)
    for _ in range(400):
        batch = int(random.integers(1, 257))
        context = float(random.uniform(1.0, 3000.0)) if random.random() < 0.7 else 60_000.5
        assert grid.decode_ms(batch, context) == pytest.approx(
            exact.decode_ms(batch, context), rel=1e-3
        )
        tokens = float(random.integers(1, 8192))
        assert grid.prefill_ms(tokens, context) == exact.prefill_ms(tokens, context)
        assert grid.mixed_ms(tokens, context, batch, context) == exact.mixed_ms(
            tokens, context, batch, context
        )
