"""Missing evidence and SLO pressure block scale-in; harmless gaps do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Slo
from autoscaler.estimate.model_demand import ModelDemand, observe_demand
from autoscaler.estimate.windows import NoData, Stats, TelemetryWindows
from autoscaler.sizing.scale_in.conditions import missing_evidence, slo_pressure
from topics.reason_codes import ReasonCode
from topics.telemetry import Telemetry

T0 = 1_700_000_000_000
POLICY = Policy()
BLANK = Telemetry("chat", "a", "b", 0, T0, 1000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7)


def two_gateways(silent_from_s: int, leaving: bool, now_s: int = 200) -> ModelDemand:
    """Two gateways that serve 2 req/s each. `b` stops at `silent_from_s`. leaving: whether `b`
    signs off.
    """
    windows = TelemetryWindows(POLICY.global_window_s)
    for second in range(1, now_s + 1):
        at = T0 + second * 1000
        windows.add(replace(BLANK, sequence=second, arrivals=2), at)
        if second <= silent_from_s:
            last = leaving and second == silent_from_s
            record = replace(BLANK, gateway="b", sequence=second, arrivals=2, leaving=last)
            windows.add(record, at)
    return observe_demand(windows, ["chat"], POLICY, T0 + now_s * 1000)["chat"]


def test_a_gateway_that_falls_silent_while_it_serves_blocks_scale_in() -> None:
    """The measured rate lacks the traffic of the silent gateway."""
    silent = missing_evidence(two_gateways(150, leaving=False), POLICY, 7)
    assert silent == Reason(ReasonCode.GATEWAY_SILENT, "", ("b",), (50.0,))


def test_a_gateway_that_signed_off_does_not_block_scale_in() -> None:
    """Otherwise a scale-in of gateways would block scale-in of instances for half an hour."""
    assert missing_evidence(two_gateways(150, leaving=True), POLICY, 7) is None


def test_a_late_or_restarted_gateway_does_not_block_scale_in() -> None:
    """A record may be five seconds late. A restarted gateway replaces its earlier boot."""
    assert missing_evidence(two_gateways(195, leaving=False), POLICY, 7) is None
    windows = TelemetryWindows(POLICY.global_window_s)
    for second in range(1, 201):
        boot = "first" if second < 100 else "second"
        if not 100 <= second < 150:
            record = replace(BLANK, boot=boot, sequence=second, arrivals=2)
            windows.add(record, T0 + second * 1000)
        windows.add(replace(BLANK, gateway="c", sequence=second), T0 + second * 1000)
    seen = observe_demand(windows, ["chat"], POLICY, T0 + 200_000)["chat"]
    assert missing_evidence(seen, POLICY, 7) is None


def test_a_silent_gateway_without_traffic_does_not_block_scale_in() -> None:
    """Such a gateway hides no demand."""
    windows = TelemetryWindows(POLICY.global_window_s)
    for second in range(1, 201):
        windows.add(replace(BLANK, sequence=second, arrivals=2), T0 + second * 1000)
        if second < 100:
            windows.add(replace(BLANK, gateway="b", sequence=second), T0 + second * 1000)
    seen = observe_demand(windows, ["chat"], POLICY, T0 + 200_000)["chat"]
    assert [gateway.gateway for gateway in seen.gateways] == ["a", "b"]
    assert [gateway.gateway for gateway in seen.reporting_gateways] == ["a"]
    assert missing_evidence(seen, POLICY, 7) is None


def quiet(**changes: object) -> ModelDemand:
    windows = TelemetryWindows(POLICY.global_window_s)
    for second in range(1, 201):
        record = replace(BLANK, sequence=second, **changes)  # type: ignore[arg-type]
        windows.add(record, T0 + second * 1000)
    return observe_demand(windows, ["chat"], POLICY, T0 + 200_000)["chat"]


def test_zero_traffic_needs_confirmation() -> None:
    """Zero arrivals count if a gateway has the current routes and no request is in flight."""
    assert missing_evidence(quiet(), POLICY, 7) is None
    assert missing_evidence(quiet(), POLICY, 8) == Reason(ReasonCode.ROUTES_UNCONFIRMED)
    assert missing_evidence(quiet(), POLICY, 7, in_flight=3) == waiting(3)
    assert missing_evidence(quiet(in_flight=4), POLICY, 7) == waiting(4)


def waiting(requests: int) -> Reason:
    return Reason(ReasonCode.STILL_IN_FLIGHT, quantities=(requests,))


def test_gaps_and_missing_telemetry_are_no_evidence() -> None:
    """No telemetry at all, and a window in which only half of the seconds are reported."""
    assert missing_evidence(ModelDemand(), POLICY) == Reason(ReasonCode.NO_TELEMETRY)
    windows = TelemetryWindows(POLICY.global_window_s)
    for second in range(140, 201):
        windows.add(replace(BLANK, sequence=second, arrivals=2), T0 + second * 1000)
    seen = observe_demand(windows, ["chat"], POLICY, T0 + 200_000)["chat"]
    gaps = Reason(ReasonCode.TELEMETRY_GAPS, quantities=(61, 120))
    assert missing_evidence(seen, POLICY, 7) == gaps
    assert ModelDemand().is_stale and not seen.is_stale
    late = observe_demand(windows, ["chat"], POLICY, T0 + 203_000)["chat"]
    assert late.is_stale


def service() -> Service:
    architecture = ModelSpec("m", 2, 64, 8, 8, 8, 128, 100, 1e9, 1e9, 2e9, 1e3)
    return Service("chat", architecture, Slo(1000.0, 50.0), percentile=0.95)


@pytest.mark.parametrize(
    ("attained", "ttft_ms", "code"),
    [
        (95, 500.0, None),
        (94, 500.0, ReasonCode.SLO_STRAINED),
        (100, 700.0, ReasonCode.LATENCY_RISING),
        (100, 620.0, None),
    ],
)
def test_slo_misses_and_rising_latency_block_removals(
    attained: int, ttft_ms: float, code: ReasonCode | None
) -> None:
    """Attainment is below the percentile; or TTFT is a quarter above that of the long window and
    over half of its limit.
    """
    long = Stats(1800, 0, 1000, 1000, 0, 0, 1000, 1.0, None, None, 500.0, 20.0)
    local = Stats(120, 0, 100, 100, 0, 0, attained, 1.0, None, None, ttft_ms, 20.0)
    found = slo_pressure(ModelDemand(local=local, long=long), service())
    assert (found.code if found is not None else None) is code
    assert slo_pressure(ModelDemand(local=NoData(None), long=long), service()) is None


def test_arrivals_that_end_while_requests_are_in_flight_are_no_evidence_yet() -> None:
    """A false zero lowers the mean of the window from its first second on. A fall of demand counts
    once no request is in flight.
    """
    windows = TelemetryWindows(POLICY.global_window_s)
    for second in range(1, 201):
        arrivals = 8 if second <= 185 else 0
        windows.add(replace(BLANK, sequence=second, arrivals=arrivals), T0 + second * 1000)
    seen = observe_demand(windows, ["chat"], POLICY, T0 + 200_000)["chat"]
    assert missing_evidence(seen, POLICY, 7, in_flight=3) == waiting(3)
    assert missing_evidence(seen, POLICY, 7) is None
