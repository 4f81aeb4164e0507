"""The quick significance test of a surge agrees with the full Poisson tail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.estimate.poisson_tests import is_significant, poisson_tail


@given(
    st.floats(0.0, 1e5),
    st.floats(-8.0, 12.0),
    st.sampled_from((1e-12, 5e-5, 1e-3, 0.05, 0.5)),
)
def test_the_quick_test_agrees_with_the_poisson_tail(
    mean: float, sigmas: float, significance: float
) -> None:
    """Counts lie near the limit and far from it, above and below the mean."""
    count = max(0, round(mean + sigmas * max(1.0, mean) ** 0.5))
    assert is_significant(count, mean, significance) == (poisson_tail(count, mean) <= significance)
