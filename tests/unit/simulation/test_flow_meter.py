"""A flow in columns equals the records of the same requests."""

from __future__ import annotations

import numpy as np

from autoscaler.simulation.arrival_flow import ArrivalFlow, Batch
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.flow_meter import FlowMeter
from autoscaler.simulation.gateway_meter import GatewayMeter
from autoscaler.simulation.rate_flow import Cohort
from topics.sketch import LOWEST, MOST_IN_CELL
from topics.telemetry import COUNTS
from topics.telemetry_columns import TelemetryBatch, batch_from_rows, batch_of
from topics.telemetry_span import Span

CAME = [Arrival(0.1, "m", 500, 100), Arrival(0.2, "m", 9000, 10), Arrival(0.3, "m", 7, 3)]


def cells(records: TelemetryBatch) -> dict[int, int]:
    """The counts of a sketch by bucket."""
    found: dict[int, int] = {}
    for place, count in np.frombuffer(records.cells[0], np.int16).reshape(-1, 2).tolist():
        found[place] = found.get(place, 0) + count
    return found


def by_column(meter: FlowMeter) -> TelemetryBatch:
    row, found = meter.report(7, 1000, 2)
    return batch_from_rows([("m", "g", "b")], [row], [found])


def by_record(span: Span) -> TelemetryBatch:
    return batch_of([span.report("m", "g", "b", 7, 5000, 1000, 2)])


def test_columns_equal_the_records_of_single_requests() -> None:
    span, meter = Span(), FlowMeter()
    for one in CAME:
        span.count_arrival(one.input_tokens, one.output_tokens)
    for one in (CAME[0], CAME[2]):  # the other request fits no engine
        span.count_answer(50.0, 1500.0, one.input_tokens, one.output_tokens, 1e3, 1e3)
    batch = ArrivalFlow(CAME, 8192, 1.0, np.random.default_rng(1)).take(0.0, 1.0)
    cohort = Cohort(0.5, batch, 3, 0, served=2, attained=2.0)
    for bucket, count in span.ttft_ms.items():
        cohort.ttft[bucket - LOWEST] += count
    for bucket, count in span.tpot_ms.items():
        cohort.tpot[bucket - LOWEST] += count
    # For the two served requests only: a flow has one total, which includes the refused request.
    span.input_tokens = batch.input_tokens
    meter.count_arrivals(batch)
    meter.count_ended(cohort)
    meter.in_flight = span.in_flight
    one, other = by_column(meter), by_record(span)
    assert one.names == other.names
    assert one.numbers.tolist() == other.numbers.tolist()
    assert cells(one) == cells(other)
    assert len(cells(one)) > 5
    # Each count equals one call of batch_of.
    assert not cells(by_column(meter))


def test_a_count_above_the_cell_limit_takes_several_cells() -> None:
    many = 2 * MOST_IN_CELL + 5
    span, meter = Span(), FlowMeter()
    for _ in range(many):
        span.count_arrival(500, 100)
    one = ArrivalFlow(CAME[:1], 8192, 1.0, np.random.default_rng(1)).take(0.0, 1.0)
    batch = Batch(many, inputs=many * one.inputs, shapes=many * one.shapes)
    meter.count_arrivals(batch)
    assert cells(by_column(meter)) == cells(by_record(span))


def test_a_gateway_report_equals_its_record() -> None:
    """The first report has answered requests, those in flight, and those sent by kind. The next has
    only zeros.
    """
    gateway_meter, record = GatewayMeter(), Span()
    for meter in (gateway_meter, record):
        for one in CAME:
            meter.count_arrival(one.input_tokens, one.output_tokens)
            meter.count_sent("long", "there")
        meter.count_sent("", "here")
        meter.count_answer(50.0, 1500.0, 500, 100, 1e3, 1e3)
        meter.refused += 1
    for _ in range(2):
        row, found, kinds = gateway_meter.take_report(7, 1000, 2)
        one = batch_from_rows([("m", "g", "b")], [row], [found], {0: kinds} if kinds else {})
        other = by_record(record)
        assert one.numbers.tolist() == other.numbers.tolist()
        assert one.cells == other.cells
        assert one.kinds == other.kinds
        assert (gateway_meter.in_flight, gateway_meter.arrivals) == (
            record.in_flight,
            record.arrivals,
        )


def test_rare_misses_are_not_lost_to_rounding() -> None:
    """Each span has one request and an attainment of 95%. If each span were rounded alone, every
    miss would be lost.
    """
    meter = FlowMeter()
    for _ in range(100):
        meter.count_ended(Cohort(0.0, Batch(1), 1, 0, served=1, attained=0.95))
    row = by_column(meter).numbers[0].tolist()
    assert (row[COUNTS.index("completions")], row[COUNTS.index("attained")]) == (100, 95)
