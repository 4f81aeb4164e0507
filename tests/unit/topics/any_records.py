"""Hypothesis strategies for all valid records, and for any JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from topics import records
from topics.checks import MAX_MS
from topics.demand import DemandSecond, GatewayState
from topics.sketch import HIGHEST, LOWEST, sketches_to_text
from topics.telemetry import LONGEST_SPAN_MS, MOST_IN_FLIGHT, MOST_PER_S

NAMES = st.text("azAZ09._:/@+-", max_size=12).map(lambda rest: "n" + rest)
COUNTS = st.integers(0, 10**12)
IN_FLIGHT = st.integers(0, MOST_IN_FLIGHT)
OF_A_SECOND = [st.integers(0, most) for most in MOST_PER_S]
TIMES = st.integers(0, MAX_MS)
RATES = st.floats(0.0, 1e9)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
LABELS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60).filter(str.isprintable)
SKETCHES = st.dictionaries(st.integers(LOWEST, HIGHEST), st.integers(0, 10**7), max_size=5)
GPUS = st.lists(st.integers(0, 63), min_size=1, max_size=4, unique=True).map(tuple)
PHASES = st.sampled_from(records.PHASES)
ENDPOINTS = st.lists(
    st.builds(records.Endpoint, NAMES, NAMES, st.integers(0, 1_000_000)), min_size=1, max_size=3
).map(tuple)
GROUPS = st.one_of(
    st.builds(records.RouteGroup, NAMES, RATES, ENDPOINTS),
    st.builds(records.RouteGroup, NAMES, RATES, prefill=ENDPOINTS, decode=ENDPOINTS),
)
OBSERVED = st.builds(
    records.ObservedInstance,
    NAMES,
    NAMES,
    PHASES,
    NAMES,
    st.sampled_from(records.InstanceState),
    GPUS,
    st.sampled_from(["", "10.0.0.5:8000", "10.0.0.5:8001"]),  # a node has one address
    TIMES,
    TIMES,
    COUNTS,
    COUNTS,
    COUNTS,
    TEXTS,
)


@st.composite
def assignments(draw: st.DrawFn) -> records.Assignment:
    """Assignments in which no two instances share a GPU."""
    free = draw(st.permutations(range(8)))
    instances = tuple(
        records.DesiredInstance(
            draw(NAMES),
            draw(NAMES),
            draw(PHASES),
            draw(NAMES),
            tuple(free[2 * i : 2 * i + 2]),
            draw(NAMES),
            draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 4)))
    )
    return records.Assignment(
        draw(NAMES), draw(NAMES), draw(COUNTS), draw(COUNTS), draw(TIMES), instances
    )


RECORDS: dict[str, st.SearchStrategy[Any]] = {
    "demand": st.builds(
        records.Demand,
        NAMES,
        st.integers(0, 100),
        st.integers(0, MAX_MS // 1000),
        st.lists(
            st.builds(
                DemandSecond,
                TIMES,
                st.tuples(*OF_A_SECOND),
                cells=st.lists(SKETCHES, max_size=6).map(sketches_to_text),
            ),
            max_size=2,
        ).map(tuple),
        st.lists(
            st.builds(
                GatewayState, NAMES, NAMES, TIMES, IN_FLIGHT, COUNTS, st.booleans(), st.booleans()
            ),
            max_size=2,
        ).map(tuple),
    ),
    "telemetry": st.builds(
        records.Telemetry,
        NAMES,
        NAMES,
        NAMES,
        COUNTS,
        TIMES,
        st.integers(0, LONGEST_SPAN_MS),
        COUNTS,
        *OF_A_SECOND[:8],
        IN_FLIGHT,
        COUNTS,
        cache_queried_tokens=OF_A_SECOND[8],
        cache_hit_tokens=OF_A_SECOND[9],
        ttft_ms=SKETCHES,
        tpot_ms=SKETCHES,
        shapes=SKETCHES,
        sent=st.dictionaries(
            NAMES, st.dictionaries(NAMES, st.integers(0, 10**6), max_size=2), max_size=2
        ),
    ),
    "supply.availability": st.builds(records.Availability, NAMES, st.integers(0, 10**6), TIMES),
    "supply.prices": st.builds(records.Price, NAMES, st.floats(0.0, 100_000.0), TIMES),
    "leadership": st.builds(
        records.Leadership, NAMES, NAMES, st.sampled_from(["claim", "renewal"]), TIMES
    ),
    "decisions": st.builds(
        records.Decision,
        COUNTS,
        COUNTS,
        st.one_of(st.just("*"), NAMES),
        st.sampled_from(records.DECISION_KINDS),
        TIMES,
        st.booleans(),
        TEXTS,
        RATES,
        RATES,
        st.floats(-1e9, 1e9),
        TIMES,
        st.lists(st.tuples(NAMES, st.integers(-100, 100)), max_size=3).map(tuple),
        TIMES,
    ),
    "plans": st.builds(
        records.PlanRecord,
        COUNTS,
        COUNTS,
        TIMES,
        NAMES,
        RATES,
        st.floats(-1.0, 1e9),
        st.lists(
            st.builds(records.PlannedCombo, NAMES, NAMES, st.integers(0, 99), RATES, RATES),
            max_size=3,
        ).map(tuple),
        st.dictionaries(NAMES, RATES, max_size=3),
    ),
    "ledger": st.one_of(
        st.builds(records.LedgerEntry, st.just("fleet"), st.just(""), COUNTS, TIMES, TEXTS),
        st.builds(records.LedgerEntry, st.just("model"), NAMES, COUNTS, TIMES, TEXTS),
        st.builds(
            records.LedgerEntry,
            st.just("arrivals"),
            NAMES,
            COUNTS,
            TIMES,
            TEXTS,
            st.integers(0, 71),
        ),
    ),
    "assignments": assignments(),
    "status": st.builds(
        records.Status,
        NAMES,
        NAMES,
        NAMES,
        COUNTS,
        TIMES,
        st.lists(OBSERVED, max_size=3).map(tuple),
    ),
    "routes": st.builds(
        records.Routes,
        NAMES,
        COUNTS,
        COUNTS,
        TIMES,
        RATES,
        RATES,
        st.lists(GROUPS, max_size=3).map(tuple),
    ),
    "controls": st.one_of(
        st.builds(
            records.Control,
            st.one_of(st.just("*"), NAMES),
            st.sampled_from(["pause", "release"]),
            st.booleans(),
            TEXTS,
            TEXTS,
            TIMES,
            TIMES,
        ),
        st.builds(
            records.Control,
            NAMES,
            st.just("verdict"),
            st.booleans(),
            TEXTS,
            TEXTS,
            TIMES,
            proposal=st.integers(1, 10**9),
            leader_token=COUNTS,
        ),
    ),
    "services": st.builds(
        records.DeclaredService, NAMES, TEXTS, TIMES, version=TIMES, withdrawn=st.booleans()
    ),
    "names": st.builds(records.FinalizedNames, TIMES, st.dictionaries(NAMES, TIMES, max_size=3)),
    "alerts": st.builds(
        records.Alert,
        NAMES,
        LABELS,
        st.sampled_from(["firing", "resolved"]),
        TIMES,
        st.lists(NAMES, max_size=3).map(tuple),
    ),
    "dead-letters": st.builds(records.DeadLetter, NAMES, COUNTS, COUNTS, TEXTS, NAMES, NAMES),
}
ANY = st.one_of([st.tuples(st.just(name), made) for name, made in RECORDS.items()])
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)
