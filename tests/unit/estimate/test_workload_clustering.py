"""Workload types of a trace: a grid over request lengths, with borders derived
from the requests.
"""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.estimate.workload_clustering import workload_types


def test_the_nine_types_of_a_mix_are_recovered() -> None:
    """Lengths as in Demystifying sec. 3, each scattered by 5%. Shares and means are recovered."""
    rng = np.random.default_rng(7)
    shares = {}
    lengths = []
    for number, pair in enumerate((i, o) for i in (2455, 824, 250) for o in (510, 120, 18)):
        shares[pair] = 100 + 40 * number
        lengths += [pair] * shares[pair]
    noisy = np.round(np.array(lengths) * rng.normal(1.0, 0.05, (len(lengths), 2)))
    found = workload_types([int(x) for x in noisy[:, 0]], [int(x) for x in noisy[:, 1]])
    assert len(found) == 9
    assert sum(kind.share for kind in found) == pytest.approx(1.0)
    for (inputs, outputs), count in shares.items():
        (kind,) = [
            k
            for k in found
            if abs(k.lengths.input_tokens / inputs - 1.0) < 0.03
            and abs(k.lengths.output_tokens / outputs - 1.0) < 0.03
        ]
        assert kind.share == pytest.approx(count / len(lengths), abs=1e-9)


def test_small_types_are_merged_into_their_neighbours() -> None:
    """Two unusual requests among a thousand get no separate type."""
    inputs, outputs = [1000] * 998 + [90_000] * 2, [100] * 1000
    found = workload_types(inputs, outputs)
    assert len(found) == 1
    assert found[0].share == 1.0
    assert found[0].lengths.input_tokens == pytest.approx((998 * 1000 + 180_000) / 1000)


def test_empty_prompts_count_as_one_token_and_an_empty_trace_is_refused() -> None:
    """Recorded lengths can be 0. A trace without requests has no types."""
    assert workload_types([0, 0], [1, 1])[0].lengths.input_tokens == 1.0
    with pytest.raises(InvalidValue, match="requests"):
        workload_types([], [])
