"""Tables of the reactive loop: a look-up covers, fills paid nodes, and degrades without failing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.checks import InvalidValue
from autoscaler.performance.profile import default_profile
from autoscaler.planning.room import Room, cluster_room, fits, pool_room
from autoscaler.planning.tables import Choice, ModelTable, build_tables
from autoscaler.planning.usage import is_spot, total_slices
from tests.unit.planning.planning_clusters import CONVERSATION, small_cluster

CLUSTER = small_cluster()
TABLES = build_tables(
    CLUSTER, {s.model: CONVERSATION for s in CLUSTER.services}, None, default_profile()
)


def check(table: ModelTable, choice: Choice, free: Room, deficit: float, spot: float) -> None:
    combos = [table.combo(combo_id) for combo_id, _ in choice.counts]
    counts = [count for _, count in choice.counts]
    for pool, wanted in total_slices(combos, counts).items():
        assert fits(wanted, free[pool].all_blocks())
    held = sum(c.req_per_s * n for c, n in zip(combos, counts, strict=True))
    assert choice.req_per_s == pytest.approx(held)
    assert choice.shortfall_req_per_s == pytest.approx(max(0.0, deficit - held), abs=1e-6)
    on_spot = sum(c.req_per_s * n for c, n in zip(combos, counts, strict=True) if is_spot(c))
    assert on_spot <= spot + 1e-6


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["chat", "code", "mini"]),
    st.floats(0.01, 500.0),
    st.floats(0.0, 200.0),
    st.lists(st.frozensets(st.integers(0, 3)), max_size=8),
    st.frozensets(st.integers(0, 7)),
)
def test_a_choice_fits_what_is_free_and_states_what_it_lacks(
    model: str,
    deficit: float,
    spot: float,
    l40s: list[frozenset[int]],
    h100: frozenset[int],
) -> None:
    free = cluster_room(CLUSTER)
    free["us-east/h100/owned"] = pool_room(CLUSTER.pool("us-east/h100/owned"), [h100])
    free["us-east/l40s/on-demand"] = pool_room(CLUSTER.pool("us-east/l40s/on-demand"), l40s)
    choice = TABLES[model].choose(deficit, free, spot)
    check(TABLES[model], choice, free, deficit, spot)


def test_without_spot_room_nothing_goes_on_spot() -> None:
    free = {k: v for k, v in cluster_room(CLUSTER).items() if "h100" not in k}
    choice = TABLES["mini"].choose(20.0, free, 0.0)
    assert choice.shortfall_req_per_s == 0.0
    assert not any("/spot" in combo_id for combo_id, _ in choice.counts)


def test_a_half_empty_node_is_filled_before_a_new_one_is_rented() -> None:
    table = TABLES["mini"]
    pool = CLUSTER.pool("us-east/l40s/on-demand")
    free = {
        pool.id: pool_room(pool, [(0,)]),
        "eu-west/l4/on-demand": pool_room(CLUSTER.pool("eu-west/l4/on-demand")),
    }
    choice = table.choose(2.0, free)
    assert choice.counts
    assert choice.billed_usd_per_h == 0.0
    assert all(pool.id in combo_id for combo_id, _ in choice.counts)


def test_with_nothing_free_the_whole_deficit_is_stated() -> None:
    choice = TABLES["mini"].choose(5.0, {})
    assert choice == Choice((), 0.0, 0.0, 0.0, 5.0)


def test_no_deficit_asks_for_nothing() -> None:
    assert TABLES["mini"].choose(0.0, cluster_room(CLUSTER)).counts == ()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_a_deficit_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(InvalidValue, match="deficit"):
        TABLES["mini"].choose(bad, {})


def test_an_unknown_combo_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="mini:a1@nowhere"):
        TABLES["mini"].combo("mini:a1@nowhere")
