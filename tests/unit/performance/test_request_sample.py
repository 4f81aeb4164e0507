"""The sample of requests for the calculation of SLO attainment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths
from autoscaler.performance.request_sample import sample_lengths

LENGTHS = Lengths.expected(2000.0, 200.0)
MOST = 10**6


@pytest.mark.parametrize("together", [-1.0, -0.5, 0.5, 1.0])
def test_lengths_have_the_stated_correlation(together: float) -> None:
    inputs, outputs = sample_lengths(replace(LENGTHS, together=together), MOST, 1)
    found = np.corrcoef(np.log(inputs), np.log(outputs))[0, 1]
    assert found == pytest.approx(together, abs=0.05)


def test_a_correlation_does_not_change_the_lengths() -> None:
    inputs, outputs = sample_lengths(LENGTHS, MOST, 1)
    same, other = sample_lengths(replace(LENGTHS, together=-0.7), MOST, 1)
    assert (same == inputs).all()
    assert other.mean() == pytest.approx(outputs.mean(), rel=0.01)
    assert np.quantile(other, 0.9) == pytest.approx(np.quantile(outputs, 0.9), rel=0.01)


def test_a_correlation_is_between_minus_one_and_one() -> None:
    with pytest.raises(InvalidValue, match="together"):
        replace(LENGTHS, together=1.5)
