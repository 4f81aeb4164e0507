"""Cost efficiency (Cauchy, sec. 3.2), compared with figures that were worked out by hand."""

from __future__ import annotations

import pytest

from autoscaler.domain.workload import Lengths
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd, phase_tokens_per_usd


def test_served_efficiency_is_tokens_per_dollar() -> None:
    """2 req/s of 1000 + 200 tokens cost 3 USD/h, of which prefill takes 1 USD/h
    and decode 2 USD/h.
    """
    lengths = Lengths(1000.0, 200.0)
    assert combo_tokens_per_usd(lengths, 2.0, 3.0) == pytest.approx(2 * 3600 * 1200 / 3)
    by_phase = phase_tokens_per_usd(lengths, 2.0, 1.0, 2.0)
    assert by_phase == pytest.approx(7200 * 1000 / 1.0 + 7200 * 200 / 2.0)
