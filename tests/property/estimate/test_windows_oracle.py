"""Windows, compared with a brute force over generated arrivals and any order of records."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.estimate.duplicates import AppliedSequences
from autoscaler.estimate.windows import MAX_AHEAD_S, NoData, Stats, TelemetryWindows
from topics.sketch import bucket_of, merge, quantile_ms
from topics.telemetry import Telemetry

T0_S = 1_700_000_000
T0 = T0_S * 1000


def record(gateway: str, sequence: int, **counts: object) -> Telemetry:
    """A record of `gateway`. Every field without an argument is zero."""
    blank = Telemetry("chat", gateway, "b", sequence, T0, 1000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return replace(blank, **counts)  # type: ignore[arg-type]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Telemetry, int]]:
    """Pairs of (record, event time): two gateways, whole seconds, gaps, repeats, any order."""
    found = []
    for gateway in ("a", "b"):
        for sequence, second in enumerate(sorted(draw(st.sets(st.integers(1, 60), max_size=30)))):
            arrivals = draw(st.integers(0, 20))
            done = draw(st.integers(0, arrivals))
            slow = draw(st.integers(1, 5000))
            made = record(
                gateway,
                sequence,
                arrivals=arrivals,
                completions=done,
                attained=done // 2,
                input_tokens_arrived=arrivals * 100,
                output_tokens=done * 7,
                ttft_ms={bucket_of(slow): done} if done else {},
                input_lengths={bucket_of(slow + 7): arrivals} if arrivals else {},
            )
            found.append((made, T0 + second * 1000))
    copies = draw(st.lists(st.sampled_from(found), max_size=10)) if found else []
    return draw(st.permutations(found + copies))


def brute_force(
    history: list[tuple[Telemetry, int]], now_ms: int, window_s: int
) -> tuple[int, int, int, dict[int, int]]:
    """(covered seconds, arrivals, completions, TTFT sketch) over distinct records."""
    distinct = {(r.gateway, r.boot, r.sequence): (r, at) for r, at in history}
    now_s = now_ms // 1000
    covered: set[int] = set()
    arrivals = completions = 0
    sketch: dict[int, int] = {}
    for made, at in distinct.values():
        second = at // 1000 - 1  # a span that ends exactly on a second belongs to the second before
        if now_s - window_s <= second < now_s:
            covered.add(second)
            arrivals += made.arrivals
            completions += made.completions
            for bucket, count in made.ttft_ms.items():
                sketch[bucket] = sketch.get(bucket, 0) + count
    return len(covered), arrivals, completions, sketch


@settings(max_examples=60, deadline=None)
@given(histories(), st.sampled_from([3, 10, 25]), st.data())
def test_sliding_sums_equal_a_recount(
    history: list[tuple[Telemetry, int]], window_s: int, data: st.DataObject
) -> None:
    """After any mix of records, duplicates and ticks, every window equals a
    recount of all records.
    """
    windows = TelemetryWindows(1800)
    seen: list[tuple[Telemetry, int]] = []
    now_s = T0_S
    while seen != history or now_s < T0_S + 70:
        if seen != history and data.draw(st.booleans()):
            made, at = history[len(seen)]
            new = (made, at) not in seen
            assert windows.add(made, at) is new
            seen.append((made, at))
            continue
        now_s += data.draw(st.integers(1, 9))
        found = windows.stats("chat", now_s * 1000, window_s)
        covered, arrivals, completions, sketch = brute_force(seen, now_s * 1000, window_s)
        if covered == 0:
            assert isinstance(found, NoData)
            continue
        assert isinstance(found, Stats)
        assert (found.covered_s, found.arrivals, found.completions) == (
            covered,
            arrivals,
            completions,
        )
        assert found.ttft_p95_ms == quantile_ms(sketch, 0.95)
        assert found.req_per_s == arrivals / covered


@settings(max_examples=60, deadline=None)
@given(histories(), st.sampled_from([20, 35, 60]), st.data())
def test_spans_blocks_and_lengths_equal_a_recount(
    history: list[tuple[Telemetry, int]], window_s: int, data: st.DataObject
) -> None:
    """Cumulative sums stay correct with disordered records, duplicates, gaps
    and ticks in between.
    """
    windows = TelemetryWindows(600)
    seen: list[tuple[Telemetry, int]] = []
    now_s = T0_S
    for made, at in history:
        windows.add(made, at)
        seen.append((made, at))
        if data.draw(st.booleans()):
            continue
        now_s += data.draw(st.integers(0, 9))
        now_ms = now_s * 1000
        newest_ms = min(max(at for _, at in seen), now_ms)
        spans = [brute_force(seen, newest_ms, span)[:2] for span in (1, 2, 7)]
        assert windows.all_recent(["chat"], now_ms, (1, 2, 7))[0] == tuple(s for s in spans if s[0])
        blocks = range(-(-(now_s - window_s) // 10), now_s // 10)
        assert windows.all_blocks(["chat"], now_ms, window_s)[0] == tuple(
            brute_force(seen, (block + 1) * 10_000, 10)[:2] for block in blocks
        )
        lengths = windows.all_stats(["chat"], now_ms, window_s)[0][1]
        distinct = {(r.gateway, r.sequence): (r, at) for r, at in seen}
        inside = [r for r, at in distinct.values() if now_s - window_s < at // 1000 <= now_s]
        assert dict(lengths.inputs) == merge(r.input_lengths for r in inside)
        assert lengths.arrivals == sum(r.arrivals for r in inside)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=200), st.sampled_from([1, 97, 400]))
def test_sequence_bits_agree_with_a_set(sequences: list[int], stride: int) -> None:
    """Within the memory of a producer each sequence number is new only once, in any order."""
    producer = AppliedSequences()
    known: set[int] = set()
    for sequence in sequences:
        number = sequence * stride
        if stride < 100:  # 300 x 97 sequences fit one page
            assert producer.is_new(number) is (number not in known)
        elif number in known:
            assert not producer.is_new(number)
        else:
            producer.is_new(number)
        known.add(number)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 50)), min_size=1, max_size=30),
    st.integers(0, 999),
)
def test_no_request_is_lost_with_spans_of_any_length(
    spans: list[tuple[int, int]], phase: int
) -> None:
    """Spans start at any time and last up to 4 s. Sums are exact, and covered seconds are
    plausible.
    """
    windows = TelemetryWindows(1800)
    at = T0 + phase
    total = 0
    for sequence, (span_ms, arrivals) in enumerate(spans):
        at += span_ms
        total += arrivals
        windows.add(record("a", sequence, arrivals=arrivals, span_ms=span_ms), at)
    found = windows.stats("chat", at + 1000, 1800)
    assert isinstance(found, Stats)
    assert found.arrivals == total
    assert abs(found.covered_s - (at - T0 - phase) / 1000) <= 2


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.sampled_from([-365 * 86_400_000, -1_801_000, MAX_AHEAD_S * 1000 + 1, 365 * 86_400_000]),
        min_size=1,
        max_size=20,
    )
)
def test_implausible_times_are_counted_and_change_nothing(shifts: list[int]) -> None:
    """Event times are wrong by half an hour or a year. Windows stay unchanged."""
    windows = TelemetryWindows(1800)
    for second in range(1, 31):
        windows.add(record("good", second, arrivals=5), T0 + second * 1000)
    now = T0 + 31_000
    before = windows.stats("chat", now, 30)
    for sequence, shift in enumerate(shifts):
        assert not windows.add(record("bad", sequence, arrivals=1000), now + shift)
    assert windows.stats("chat", now, 30) == before
    assert windows.counters.late + windows.counters.ahead == len(shifts)
    assert windows.add(record("good", 31, arrivals=5), T0 + 31_000)
