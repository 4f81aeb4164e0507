"""The overhead of the test harness, calculated from metrics pages."""

from __future__ import annotations

import pytest

from streams.tools.up.request_overhead import combine

GATEWAY = """# TYPE shoal:gateway_overhead_quantile_ms gauge
shoal:gateway_overhead_quantile_ms{quantile="0.5"} 1.0
shoal:gateway_overhead_quantile_ms{quantile="0.99"} 8.0
"""


def engine(p50: float, p99: float, count: int) -> str:
    return (
        "# TYPE shoal:sim_late_ms summary\n"
        f'shoal:sim_late_ms{{model_name="m",quantile="0.5"}} {p50}\n'
        f'shoal:sim_late_ms{{model_name="m",quantile="0.99"}} {p99}\n'
        f'shoal:sim_late_ms_sum{{model_name="m"}} 1.0\n'
        f'shoal:sim_late_ms_count{{model_name="m"}} {count}\n'
    )


def test_the_p99_delay_of_engines_is_weighted_by_their_writes() -> None:
    found = combine(GATEWAY, [engine(1.0, 5.0, 300), engine(5.0, 9.0, 100), engine(99.0, 99.0, 0)])
    assert found["p50"] == pytest.approx(1.0 + 2.0)
    assert found["p99"] == pytest.approx(8.0 + 9.0)


def test_a_gateway_that_does_not_answer_gives_no_figure() -> None:
    assert combine("", [engine(1.0, 5.0, 3)]) == {"p50": None, "p99": None}
