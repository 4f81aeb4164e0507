"""Cauchy's cost efficiency (sec. 3.2) against numbers worked by hand for Llama-3.1-8B."""

from __future__ import annotations

import pytest

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.workload import Lengths
from autoscaler.performance.catalog import gpu, model
from autoscaler.planning.cost_efficiency import (
    combo_tokens_per_usd,
    decode_coefficient,
    phase_tokens_per_usd,
    prefill_coefficient,
    theoretical_tokens_per_usd,
)

LLAMA = model("meta-llama/Llama-3.1-8B")
BALANCED = Lengths(1000.0, 200.0)
# l = 32, h = 4096, i = 14336, v = 128256, k = 8, s = 128, d = 2.
C1 = 4 * 32 * 4096
C2 = 8 * 32 * 4096**2 + 6 * 32 * 4096 * 14336
C3 = 2 * (2 * 128256 * 4096 + (4 * 4096**2 + 3 * 4096 * 14336 + 2 * 4096) * 32)
C4 = 2 * 2 * 32 * 8 * 128


def test_the_coefficients_are_those_of_the_formulas() -> None:
    assert (C1, C2, C4) == (524_288, 15_569_256_448, 131_072)
    assert prefill_coefficient(LLAMA, BALANCED) == pytest.approx(1 / (C1 * 1000 + C2))
    # A batch of 32 shares the weights: 131,072 x (1000 + 100) + C3 / 32 bytes a token.
    assert decode_coefficient(LLAMA, BALANCED, 32.0) == pytest.approx(1 / (C4 * 1100 + C3 / 32))


def test_efficiency_counts_seconds_against_hourly_prices() -> None:
    """989 TFLOPS for 3600 s over 2 USD, and 4000 GB/s likewise over 1.5 USD."""
    found = theoretical_tokens_per_usd(LLAMA, BALANCED, 32.0, (gpu("H800"), 2.0), (gpu("H20"), 1.5))
    prefill = 989e12 * 3600 / 2.0 / (C1 * 1000 + C2)
    decode = gpu("H20").mem_bw_gb_s * 1e9 * 3600 / 1.5 / (C4 * 1100 + C3 / 32)
    assert found == pytest.approx(prefill + decode)


def test_the_compute_rich_gpu_prefills_and_the_bandwidth_rich_one_decodes() -> None:
    """The principle of relative advantage: H800 for H20 beats H20 for H800."""
    h800, h20 = (gpu("H800"), 2.0), (gpu("H20"), 1.0)
    right = theoretical_tokens_per_usd(LLAMA, BALANCED, 32.0, h800, h20)
    wrong = theoretical_tokens_per_usd(LLAMA, BALANCED, 32.0, h20, h800)
    assert right > wrong


def test_longer_outputs_weigh_for_cheap_bandwidth() -> None:
    """Per USD, bandwidth counts more of the whole the more tokens are decoded per prefilled one."""
    short_in = Lengths(100.0, 1000.0)
    long_in = Lengths(4000.0, 100.0)
    shares = [
        decode_coefficient(LLAMA, lengths, 32.0) / prefill_coefficient(LLAMA, lengths)
        for lengths in (short_in, long_in)
    ]
    assert shares[0] > shares[1]


def test_served_efficiency_is_tokens_per_dollar() -> None:
    """2 req/s of 1000 + 200 tokens for 3 USD/h; by phases with 1 and 2 USD/h of it."""
    assert combo_tokens_per_usd(BALANCED, 2.0, 3.0) == pytest.approx(2 * 3600 * 1200 / 3)
    by_phase = phase_tokens_per_usd(BALANCED, 2.0, 1.0, 2.0)
    assert by_phase == pytest.approx(7200 * 1000 / 1.0 + 7200 * 200 / 2.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_gpu_without_a_price_is_refused(bad: float) -> None:
    with pytest.raises(InvalidValue, match="price of the prefill GPU"):
        theoretical_tokens_per_usd(LLAMA, BALANCED, 32.0, (gpu("H800"), bad), (gpu("H20"), 1.0))
