"""Windows distinguish missing data, ended series and zero traffic. Updates of windows are cheap."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.estimate.duplicates import AppliedSequences
from autoscaler.estimate.gateway_registry import MOST_BOOTS_PER_MODEL
from autoscaler.estimate.windows import NoData, PrefixHits, Stats, TelemetryWindows, TokenSums
from topics.sketch import bucket_of
from topics.telemetry import COUNTS, MOST_PER_S, Telemetry
from topics.telemetry_columns import batch_of

T0 = 1_700_000_000_000
BLANK = Telemetry("chat", "g", "b", 0, T0, 1000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 7)


def filled(seconds: int, arrivals: int = 4) -> TelemetryWindows:
    windows = TelemetryWindows(600)
    for k in range(1, seconds + 1):
        windows.add(replace(BLANK, sequence=k, arrivals=arrivals), T0 + k * 1000)
    return windows


def test_missing_ended_and_zero_series_give_different_results() -> None:
    """No series, a series that ended, and a series of zeros."""
    windows = filled(10, arrivals=0)
    assert windows.stats("other", T0 + 10_000, 10) == NoData(None)
    assert windows.stats("chat", T0 + 60_000, 10) == NoData(T0 + 10_000)
    zero = windows.stats("chat", T0 + 61_000, 120)
    assert isinstance(zero, Stats) and zero.arrivals == 0 and zero.covered_s == 10
    assert zero.mean_input_tokens is None and zero.ttft_p95_ms is None


def test_a_window_has_the_median_and_the_tail_of_the_time_per_token() -> None:
    windows = TelemetryWindows(600)
    times = {bucket_of(20.0): 60, bucket_of(40.0): 34, bucket_of(90.0): 6}
    windows.add(replace(BLANK, sequence=1, completions=100, tpot_ms=times), T0 + 1000)
    found = windows.stats("chat", T0 + 1000, 10)
    assert isinstance(found, Stats)
    assert found.tpot_p50_ms == pytest.approx(20.0, rel=0.05)
    assert found.tpot_p95_ms == pytest.approx(90.0, rel=0.05)


def test_a_window_states_the_age_of_its_newest_second() -> None:
    """5 s after the last reported second, the age is 5 s."""
    found = filled(10).stats("chat", T0 + 15_000, 10)
    assert isinstance(found, Stats) and found.age_ms == 5000 and found.covered_s == 5


def test_the_newest_second_can_be_queried_first() -> None:
    assert filled(60).newest_ms("chat", T0 + 70_000) == T0 + 60_000


def test_the_rate_of_a_window_counts_only_reported_seconds() -> None:
    """Gaps are not zeros: the rate is 4 requests/s over 5 reported seconds, not 2 requests/s over
    10.
    """
    found = filled(10).stats("chat", T0 + 15_000, 10)
    assert isinstance(found, Stats) and found.req_per_s == 4.0


@pytest.mark.parametrize("span_ms", [1000, 10_000])
def test_seconds_without_a_query_count_within_the_horizon(span_ms: int) -> None:
    """The first query comes after 2,000 s of records, and the window is 600 s. After a gap of 7,000
    s come records for another 100 s."""
    windows = TelemetryWindows(600)
    every_s = span_ms // 1000
    ends = [*range(every_s, 2001, every_s), *range(9000 + every_s, 9101, every_s)]
    for number, end_s in enumerate(ends):
        one = replace(BLANK, sequence=number, span_ms=span_ms, arrivals=4 * every_s)
        windows.advance(T0 + end_s * 1000)
        windows.add(one, T0 + end_s * 1000)
        if end_s == 2000:
            found = windows.stats("chat", T0 + 2_000_000, 600)
            assert isinstance(found, Stats) and (found.covered_s, found.arrivals) == (600, 2400)
    found = windows.stats("chat", T0 + 9_100_000, 600)
    assert isinstance(found, Stats) and (found.covered_s, found.arrivals) == (100, 400)


def test_recent_arrivals_are_counted_back_from_the_newest_reported_second() -> None:
    """The test reads the arrivals of the last 1, 2 and 3 seconds. If the newest second is not
    reported, the count begins before it.
    """
    windows = filled(10)
    assert windows.all_recent(["chat"], T0 + 11_000, (1, 2, 3))[0] == ((1, 4), (2, 8), (3, 12))


def test_sequence_numbers_are_per_gateway_and_boot() -> None:
    """The same number from another boot or gateway belongs to another record."""
    windows = TelemetryWindows()
    at = T0 + 1000
    assert windows.add(BLANK, at)
    assert not windows.add(BLANK, at + 1000)
    assert windows.add(replace(BLANK, boot="c"), at)
    assert windows.add(replace(BLANK, gateway="h"), at)
    assert windows.counters.duplicate == 1


def test_very_old_sequence_numbers_count_as_duplicates() -> None:
    """A number below the stored ones is a duplicate, however late it comes."""
    windows = TelemetryWindows(86_400)
    for k in range(6000):
        windows.add(replace(BLANK, sequence=k), T0 + k * 1000)
    assert not windows.add(replace(BLANK, sequence=3), T0 + 6_000_000)


def test_gateways_are_listed_with_their_newest_record_while_they_report() -> None:
    """They show in_flight and route_generation, and disappear ten seconds after
    their last record.
    """
    windows = filled(5)
    (seen,) = windows.gateways("chat", T0 + 6_000)
    assert (seen.gateway, seen.in_flight, seen.route_generation) == ("g", 3, 7)
    assert windows.gateways("chat", T0 + 16_000) == ()


def test_windows_store_no_more_than_their_horizon() -> None:
    """The limit holds after a day of seconds. It includes some slack."""
    windows = TelemetryWindows(600)
    for k in range(1, 20_000):
        record = replace(BLANK, sequence=k, arrivals=1, ttft_ms={100: 1})
        windows.add(record, T0 + k * 1000)
        if k % 10 == 0:
            windows.stats("chat", T0 + k * 1000, 600)
    assert len(windows._totals.rows) < 900
    assert len(windows._sketches.fine) + len(windows._sketches.coarse) < 220
    found = windows.stats("chat", T0 + 20_000_000, 600)
    assert isinstance(found, Stats) and found.arrivals == found.covered_s == 599


def test_earlier_boots_of_a_gateway_are_dropped_in_time() -> None:
    """Each boot is a separate producer. A year of restarts must not accumulate in memory."""
    windows = TelemetryWindows(60)
    for k in range(1, 2001):
        record = replace(BLANK, sequence=1, boot=f"boot-{k}")
        windows.add(record, T0 + k * 1000)
        windows.stats("chat", T0 + k * 1000, 10)
    assert windows.producer_count("chat") < 400
    again = replace(BLANK, sequence=1, boot="boot-2000")
    assert not windows.add(again, T0 + 2_000_000)
    assert not windows.add(replace(BLANK, sequence=1, boot="boot-1"), T0 + 1000)
    assert (windows.counters.duplicate, windows.counters.late) == (1, 1)


def test_indices_of_silent_models_are_reused_without_mixing_data() -> None:
    """In five hours 2,000 models report once and one reports all the time. The horizon is ten
    minutes. Each new model shows only its own data.
    """
    windows, bytes_ = TelemetryWindows(600), {}
    for k in range(1, 2001):
        now_ms = T0 + k * 10_000
        said = {"arrivals": 1 + k % 7, "input_lengths": {k % 590: 2}, "sent": {"text": {"own": 1}}}
        windows.add(replace(BLANK, sequence=k, arrivals=1), now_ms)
        record = replace(BLANK, model=f"once-{k}", **said)
        windows.add(record, now_ms)
        windows.stats("chat", now_ms + 1, 600)
        if k % 20 == 0:
            alone = TelemetryWindows(600)
            alone.add(record, now_ms)
            asked = (record.model, now_ms + 1, 600)
            assert windows.stats(*asked) == alone.stats(*asked)
            all_asked = ([record.model], now_ms + 1, 600)
            one, other = (each.all_stats(*all_asked)[0][1] for each in (windows, alone))
            assert dict(one.inputs) == dict(other.inputs)
            assert windows.all_blocks(*all_asked) == alone.all_blocks(*all_asked)
            assert windows.gateways(*asked[:2]) == alone.gateways(*asked[:2])
        if k in (300, 2000):
            bytes_[k] = len(pickle.dumps(windows))
    assert bytes_[2000] < 1.1 * bytes_[300]
    found = windows.stats("chat", T0 + 20_000_001, 600)
    assert isinstance(found, Stats) and found.covered_s == 60


def test_a_queried_model_keeps_the_time_of_its_last_report() -> None:
    """The time stays while the model is queried, even after its data is dropped."""
    windows = filled(5)
    for k in range(1, 61):
        windows.add(replace(BLANK, model="other", sequence=k), T0 + k * 60_000)
        assert windows.stats("chat", T0 + 30_000 + k * 60_000, 10) == NoData(T0 + 5_000)


def test_only_whole_blocks_are_returned_and_missing_ones_are_marked() -> None:
    """25 s of 4 req/s that begin at a multiple of ten give two whole blocks. An hour later all
    blocks are unobserved.
    """
    windows = filled(25)
    assert windows.all_blocks(["chat"], T0 + 29_000, 20)[0] == ((10, 40),)
    assert windows.all_blocks(["chat"], T0 + 30_000, 30)[0] == ((10, 40), (10, 40), (5, 20))
    assert windows.all_blocks(["chat"], T0 + 500_000, 30)[0] == ((0, 0),) * 3
    assert windows.all_blocks(["other"], T0 + 30_000, 30)[0] == ()


def test_a_late_record_is_added_to_its_own_block() -> None:
    """A slow gateway reports a second that other gateways already reported."""
    windows = filled(40)
    assert windows.all_blocks(["chat"], T0 + 40_000, 40)[0] == ((10, 40),) * 4
    windows.add(replace(BLANK, gateway="slow", arrivals=9), T0 + 13_000)
    assert windows.all_blocks(["chat"], T0 + 40_000, 40)[0] == (
        (10, 40),
        (10, 49),
        (10, 40),
        (10, 40),
    )
    assert windows.all_recent(["chat"], T0 + 40_000, (10, 30))[0] == ((10, 40), (30, 129))


def test_a_sign_off_holds_against_later_records_of_its_boot() -> None:
    """A retried record after the sign-off does not bring the gateway back, but a new boot does."""
    windows = filled(5)
    windows.add(replace(BLANK, sequence=7, leaving=True), T0 + 7_000)
    windows.add(replace(BLANK, sequence=6), T0 + 7_000)
    assert windows.gateways("chat", T0 + 8_000) == ()
    windows.add(replace(BLANK, boot="again", sequence=1), T0 + 9_000)
    assert [seen.boot for seen in windows.gateways("chat", T0 + 9_000)] == ["again"]


@pytest.mark.parametrize("looked", [True, False])
def test_a_sign_off_holds_if_an_earlier_record_has_a_later_time(looked: bool) -> None:
    """The event time of a record is the broker's time minus an age, so delays can reorder two
    records. The sign-off of a replaced boot changes nothing.
    """
    windows = filled(5)
    windows.add(replace(BLANK, sequence=6), T0 + 7_009)
    if looked:
        assert len(windows.gateways("chat", T0 + 8_000)) == 1
    windows.add(replace(BLANK, sequence=7, leaving=True), T0 + 7_003)
    windows.add(replace(BLANK, sequence=8), T0 + 7_010)
    assert windows.gateways("chat", T0 + 8_000) == ()
    windows = filled(5)
    windows.add(replace(BLANK, boot="again", sequence=1), T0 + 7_009)
    if looked:
        assert len(windows.gateways("chat", T0 + 8_000)) == 1
    windows.add(replace(BLANK, sequence=7, leaving=True), T0 + 7_003)
    assert [seen.boot for seen in windows.gateways("chat", T0 + 8_000)] == ["again"]


def test_gateways_show_the_age_of_their_last_record_and_request() -> None:
    """These are two separate ages, in s."""
    windows = TelemetryWindows()
    windows.add(replace(BLANK, arrivals=1, in_flight=0), T0 + 1000)
    windows.add(replace(BLANK, sequence=1, in_flight=0), T0 + 2000)
    (seen,) = windows.gateways("chat", T0 + 62_000, 1800)
    assert (seen.age_ms, seen.last_traffic_ms) == (60_000, T0 + 1000)


def test_a_producer_takes_little_memory() -> None:
    """Hours of one gateway with a hundred models take at most 10 KiB."""
    producer = AppliedSequences()
    for sequence in range(0, 2_000_000, 100):
        assert producer.is_new(sequence)
    assert sys.getsizeof(producer.newest) + sys.getsizeof(producer.before) < 10_240
    assert not producer.is_new(1_999_900) and not producer.is_new(100)


@pytest.mark.parametrize("counted", [True, False])
def test_further_gateways_of_a_model_are_refused_above_the_limit(counted: bool) -> None:
    """The registered gateways go on, and silent ones make room in time."""
    windows = TelemetryWindows(600)
    first = replace(BLANK, gateway="first", arrivals=4)

    def add(records: list[Telemetry], second: int) -> None:
        take = windows.add_all if counted else windows.note_gateways
        take(batch_of(records), np.array([T0 + second * 1000] * len(records)))

    windows.advance(T0)
    add([replace(first, sequence=1)], 1)
    add([replace(BLANK, gateway=f"g{k}", sequence=1) for k in range(3000)], 1)
    assert windows.producer_count("chat") == MOST_BOOTS_PER_MODEL
    assert windows.counters.refused == 3001 - MOST_BOOTS_PER_MODEL
    assert windows.counters.duplicate == 0
    add([replace(first, sequence=2)], 2)
    gateways = {seen.gateway for seen in windows.gateways("chat", T0 + 2000)}
    assert "first" in gateways and len(gateways) == MOST_BOOTS_PER_MODEL
    windows.stats("chat", T0 + 900_000, 10)
    windows.stats("chat", T0 + 1_000_000, 10)
    add([replace(BLANK, gateway="new", sequence=1)], 1000)
    assert {seen.gateway for seen in windows.gateways("chat", T0 + 1_000_000)} == {"new"}


def test_blocks_stay_right_and_small_over_hours() -> None:
    """Three hours with a horizon of ten minutes and a query each second. Every whole block has 4
    req/s.
    """
    windows = TelemetryWindows(600)
    for k in range(1, 10_801):
        windows.add(replace(BLANK, sequence=k, arrivals=4), T0 + k * 1000)
        if k % 7 == 0:
            windows.all_blocks(["chat"], T0 + k * 1000, 600)[0]
    assert windows.all_blocks(["chat"], T0 + 10_800_000, 600)[0] == ((10, 40),) * 60
    assert windows.all_recent(["chat"], T0 + 10_800_000, (1, 600))[0] == ((1, 4), (600, 2400))
    assert len(windows._totals.rows) < 900


@pytest.mark.parametrize("every", [7, 45, 60, 90])
def test_long_windows_drop_sketches_in_blocks_and_short_ones_by_the_second(every: int) -> None:
    """Windows longer than two minutes drop sketches in steps of half a minute. Counts are exact in
    any window.
    """
    windows = TelemetryWindows(1800)
    for k in range(1, 701):
        windows.advance(T0 + k * 1000)
        record = replace(BLANK, sequence=k, arrivals=1, input_lengths={k - 118: 1})
        windows.add(record, T0 + k * 1000)
        if k % every == 0:
            windows.all_stats(["chat"], T0 + k * 1000, 500)[0][1]
            windows.all_stats(["chat"], T0 + k * 1000, 100)[0][1]
    short = windows.all_stats(["chat"], T0 + 700_000, 100)[0][1]
    assert set(short.inputs) == {k - 118 for k in range(601, 701)}
    long = windows.all_stats(["chat"], T0 + 700_000, 500)[0][1]
    first = min(long.inputs) + 118
    assert 201 - 30 < first <= 201 and (T0 // 1000 + first - 1) % 30 == 0
    assert set(long.inputs) == {k - 118 for k in range(first, 701)} and long.arrivals == 500


def test_windows_queried_a_minute_apart_are_not_summed_again() -> None:
    windows = TelemetryWindows(1800)
    known = []
    for k in range(1, 701):
        windows.add(replace(BLANK, sequence=k, input_lengths={k - 118: 1}), T0 + k * 1000)
        if k % 60 == 0:
            windows.all_stats(["chat"], T0 + k * 1000, 500)
            known.append(windows._sketches.sums[500])
    assert all(one is known[0] for one in known[1:])


def test_tokens_of_several_spans_are_read_at_once() -> None:
    """The test reads token sums of each model over several spans of whole seconds before now."""
    windows = TelemetryWindows(600)
    for k in range(1, 41):
        said = {"arrivals": 2, "input_tokens_arrived": 20 * k, "completions": 1, "output_tokens": k}
        windows.add(replace(BLANK, sequence=k, **said), T0 + k * 1000)
    chat, nobody = windows.all_tokens(["chat", "nobody"], T0 + 40_000, (1, 2, 40))
    sums = ((2, 800, 1, 40), (4, 1580, 2, 79), (80, 16_400, 40, 820))
    assert chat == tuple(TokenSums(*one) for one in sums)
    assert nobody == (TokenSums(0, 0, 0, 0),) * 3
    assert windows.all_tokens(["chat"], T0 + 40_000, ()) == [()]


def test_arrivals_of_a_second_are_limited_to_what_a_demand_allows() -> None:
    """Many gateways each report the highest count that a record allows. Other seconds count as
    usual.
    """
    windows = TelemetryWindows(600)
    most = replace(BLANK, **dict(zip(COUNTS, MOST_PER_S, strict=True)))
    for k in range(1, 40):
        windows.add(replace(most, gateway=f"g{k}", sequence=k), T0 + 1000)
    windows.add(replace(BLANK, sequence=99, arrivals=5), T0 + 2000)
    found = windows.stats("chat", T0 + 3000, 10)
    assert isinstance(found, Stats) and found.covered_s == 2
    assert found.arrivals == MOST_PER_S[0] + 5
    assert windows.all_tokens(["chat"], T0 + 3000, [10])[0][0].input_tokens == MOST_PER_S[5]


def test_prefix_hits_of_several_spans() -> None:
    """Half of the tokens hit, except in one half minute and in the last one."""
    windows = TelemetryWindows(1800)
    for k in range(1, 1231):
        rate = 10 if 120 < k <= 150 or k > 1200 else 50
        record = replace(BLANK, sequence=k, cache_queried_tokens=100, cache_hit_tokens=rate)
        windows.add(record, T0 + k * 1000)
    (found,) = windows.all_prefix_hits(["chat"], T0 + 1_230_000, (10, 30), 300, 1800)
    assert found.recent == ((1000, 100), (3000, 300))
    assert (found.local_queried, found.local_hit) == (30_000, 13_800)
    assert found.proven_share == pytest.approx(0.5)  # the newest half of the minutes
    assert found.minutes == 20
    (other,) = windows.all_prefix_hits(["other"], T0 + 1_230_000, (10, 30), 300, 1800)
    assert other == PrefixHits(((0, 0), (0, 0)))
