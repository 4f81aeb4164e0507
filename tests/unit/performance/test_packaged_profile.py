"""The packaged profile, compared with samples of measurements: a change that makes it worse fails.

The samples are among the points of the fit. `shoal profile evaluate --leave-one-out` gives the
errors for held-out models, which the documentation states.
"""

from __future__ import annotations

from pathlib import Path

from autoscaler.performance import catalog
from autoscaler.performance.estimate_errors import ErrorSummary, errors_by_class
from autoscaler.performance.holdout import estimate_all, estimate_held_out_half
from autoscaler.performance.packaged_profile import default_profile
from streams.files.measured_points import read_points

DATA = Path(__file__).parent / "data"


def _total(points) -> ErrorSummary:
    return errors_by_class(estimate_all(points, default_profile()))[-1]


def test_dense_models_are_within_the_stated_error() -> None:
    total = _total(read_points(DATA / "benchmarks_dense.csv").points)
    assert total.points > 40
    assert total.tpot_mape is not None
    assert total.ttft_mape is not None
    assert total.tpot_mape < 0.15
    assert total.ttft_mape < 0.35


def test_measured_batches_are_reproduced() -> None:
    total = _total(read_points(DATA / "batches.csv").points)
    assert total.points > 90
    assert total.tpot_mape is not None
    assert total.ttft_mape is not None
    assert total.tpot_mape < 0.02
    assert total.ttft_mape < 0.05


def test_half_of_the_measured_batches_predict_the_other_half() -> None:
    points = read_points(DATA / "batches.csv").points
    total = errors_by_class(estimate_held_out_half(points, [], configurations=False))[-1]
    assert total.tpot_mape is not None
    assert total.ttft_mape is not None
    assert total.tpot_mape < 0.1
    assert total.ttft_mape < 0.2


def test_uncertain_predictions_are_marked() -> None:
    """GPUs without measurements and large mixtures of experts are uncertain. A dense model on a
    measured GPU is not.
    """
    profile = default_profile()
    dense, large = catalog.model("Qwen/Qwen3-32B"), catalog.model("deepseek-ai/DeepSeek-R1")
    h100, l4 = catalog.gpu("H100"), catalog.gpu("L4")
    assert not profile.uncertain(dense, h100)
    assert profile.uncertain(dense, l4)
    assert profile.uncertain(large, h100)
    # The L4 has the chip family of the L40S, so the factors of the L40S apply, not a default.
    assert profile.kernels(l4) == profile.kernels(catalog.gpu("L40S"))
