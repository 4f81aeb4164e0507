"""No request exceeds the context of its server. Declared means are those of the
requests that fit.
"""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.domain.workload import Lengths
from autoscaler.performance.request_sample import sample_lengths

SEED = 5


@pytest.mark.parametrize(("prompt", "answer"), [(2000, 8000), (300, 8000), (8000, 400)])
def test_no_request_is_longer_than_the_context_and_the_declared_means_stay(
    prompt: float, answer: float
) -> None:
    inputs, outputs = sample_lengths(Lengths.expected(prompt, answer), 16_384, SEED)
    assert (inputs + outputs).max() <= 16_384
    assert inputs.mean() == pytest.approx(prompt, rel=0.01)
    assert outputs.mean() == pytest.approx(answer, rel=0.01)


def test_means_that_fill_the_context_leave_every_request_at_it() -> None:
    inputs, outputs = sample_lengths(Lengths.expected(100, 3996), 4096, SEED)
    assert (inputs + outputs).max() <= 4096
    assert outputs.mean() == pytest.approx(3996, rel=0.02)


def test_lengths_that_fit_are_unchanged_by_the_limit() -> None:
    short = Lengths.expected(500, 100)
    limited, free = sample_lengths(short, 131_072, SEED), sample_lengths(short, 10_000_000, SEED)
    assert all(np.array_equal(one, other) for one, other in zip(limited, free, strict=True))


def test_prompts_and_answers_are_cut_together() -> None:
    together = Lengths(6000.0, 6000.0, together=0.9)
    inputs, outputs = sample_lengths(together, 16_384, SEED)
    assert (inputs + outputs).max() <= 16_384
