"""Candidate combos fit, meet the SLO, and can be found by their names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Arrivals, Phase, Slo
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.candidate_combos import candidate_combos, evaluate_combo, nearest_combos
from autoscaler.planning.combo_names import parse_combo_id
from tests.unit.planning.planning_clusters import CONVERSATION, small_cluster

PROFILE = default_profile()


def test_every_candidate_can_be_rebuilt_from_its_name() -> None:
    cluster = small_cluster()
    for service in cluster.services:
        for combo in candidate_combos(cluster, service, CONVERSATION, PROFILE):
            assert evaluate_combo(combo.id, cluster, service, CONVERSATION, PROFILE) == combo


def test_a_70b_model_gets_no_slice_too_small_for_its_weights() -> None:
    cluster = small_cluster()
    combos = candidate_combos(cluster, cluster.service("chat"), CONVERSATION, PROFILE)
    smallest = {"h100": 2, "l40s": 4}
    assert combos
    for combo in combos:
        for member in combo.members:
            assert member.gpus >= smallest[member.pool.split("/")[1]]


def test_candidates_meet_the_slo_and_match_their_slower_phase() -> None:
    cluster = small_cluster()
    service = cluster.service("mini")
    for combo in candidate_combos(cluster, service, CONVERSATION, PROFILE):
        assert combo.meets_slo
        assert combo.ttft_ms <= service.slo.ttft_ms * (1 + 1e-9)
        assert combo.tpot_ms <= service.slo.tpot_ms * (1 + 1e-9)
        by_phase: dict[Phase, float] = {}
        for member in combo.members:
            got = by_phase.get(member.phase, 0.0)
            by_phase[member.phase] = got + member.count * member.req_per_s
        assert combo.req_per_s == pytest.approx(min(by_phase.values()))
        assert len({member.pool.split("/")[0] for member in combo.members}) == 1


def test_a_pair_of_gpus_is_used_in_one_direction_only() -> None:
    cluster = small_cluster()
    combos = candidate_combos(cluster, cluster.service("mini"), CONVERSATION, PROFILE)
    kinds = {
        tuple(member.pool.split("/")[1] for member in combo.members)
        for combo in combos
        if len(combo.members) == 2 and all("on-demand" in m.pool for m in combo.members[:1])
    }
    assert not ({("h100", "l40s"), ("l40s", "h100")} <= kinds)


def test_spot_is_offered_only_to_services_that_accept_it() -> None:
    cluster = small_cluster()
    for name, accepted in (("chat", False), ("mini", True)):
        combos = candidate_combos(cluster, cluster.service(name), CONVERSATION, PROFILE)
        on_spot = [c for c in combos if any(m.pool.endswith("/spot") for m in c.members)]
        assert bool(on_spot) is accepted


def test_token_times_are_predicted_at_the_load_of_the_combo() -> None:
    """Decode instances of a pair get no more requests than it prefills. By Little's law, the
    requests in decoding are the rate of tokens times the time per token."""
    cluster = small_cluster()
    service = cluster.service("mini")
    seen = set()
    for combo in candidate_combos(cluster, service, CONVERSATION, PROFILE):
        times = combo.token_times
        if times is None:
            continue
        tokens_per_s = combo.req_per_s * service.utilization * CONVERSATION.output_tokens
        assert 1e3 * times.batch / times.tpot_ms == pytest.approx(tokens_per_s, rel=0.2)
        assert times.half_tpot_ms <= times.tpot_ms
        seen.add(len(combo.members))
    assert seen == {1, 2}


def test_an_impossible_slo_has_no_candidates_and_late_ones_are_marked() -> None:
    cluster = small_cluster()
    mini = replace(cluster.service("mini"), slo=Slo(0.5, 0.5))
    assert candidate_combos(cluster, mini, CONVERSATION, PROFILE) == ()
    combos = nearest_combos(cluster, mini, CONVERSATION, PROFILE)
    assert combos
    assert not any(combo.meets_slo for combo in combos)


def test_a_change_of_demand_reuses_combos() -> None:
    """Combos are reused while the arrivals at each instance stay the same."""
    cluster = small_cluster()
    mini = cluster.service("mini")
    built = [
        candidate_combos(cluster, mini, CONVERSATION, PROFILE, arrivals=Arrivals(rate, 1.0))
        for rate in (500.0, 505.0, 0.5)
    ]
    assert built[1] is built[0]
    assert built[2] != built[0]


def test_a_model_that_may_not_be_disaggregated_gets_no_pairs() -> None:
    cluster = small_cluster()
    mini = cluster.service("mini")
    assert any(len(c.members) > 1 for c in candidate_combos(cluster, mini, CONVERSATION, PROFILE))
    whole = candidate_combos(cluster, replace(mini, disaggregate=False), CONVERSATION, PROFILE)
    assert whole
    assert all(len(combo.members) == 1 for combo in whole)


def test_prefill_and_decode_are_separated_only_if_the_network_can_move_the_cache() -> None:
    """An L40S node of four GPUs produces more than 1 Gbit/s of KV cache of an 8B model, but less
    than 400.
    """

    def pairs(gbit_per_s: float) -> list[str]:
        cluster = small_cluster()
        pools = tuple(replace(p, between_gb_s=gbit_per_s / 8.0) for p in cluster.pools)
        slow = replace(cluster, pools=tuple(p for p in pools if p.name == "l40s"))
        found = candidate_combos(slow, slow.service("mini"), CONVERSATION, PROFILE)
        return [combo.id for combo in found if len(combo.members) > 1]

    assert pairs(400.0)
    assert not pairs(1.0)


def test_a_single_node_needs_no_network_between_nodes() -> None:
    cluster = small_cluster()
    pools = tuple(replace(p, between_gb_s=1e-3) for p in cluster.pools if p.name == "h100")
    found = candidate_combos(
        replace(cluster, pools=pools), cluster.service("mini"), CONVERSATION, PROFILE
    )
    assert any(len(combo.members) > 1 for combo in found)


def test_the_start_of_a_combo_includes_the_time_to_get_a_node() -> None:
    cluster = small_cluster()
    later = replace(
        cluster,
        pools=tuple(
            replace(p, provision_s=0.0 if p.market is Market.OWNED else 240.0)
            for p in cluster.pools
        ),
    )
    now = {c.id: c for c in candidate_combos(cluster, cluster.services[2], CONVERSATION, PROFILE)}
    for combo in candidate_combos(later, later.services[2], CONVERSATION, PROFILE):
        rented = any(not member.pool.endswith("owned") for member in combo.members)
        assert combo.start_s == pytest.approx(now[combo.id].start_s + 240.0 * rented)


def test_a_model_that_fits_no_pool_has_no_candidates() -> None:
    cluster = small_cluster()
    only_l4 = Cluster(tuple(p for p in cluster.pools if p.name == "l4"), cluster.services)
    assert candidate_combos(only_l4, cluster.service("chat"), CONVERSATION, PROFILE) == ()


def test_a_scale_target_model_gets_single_instances_of_its_pools() -> None:
    cluster = small_cluster()
    mini = replace(
        cluster.service("mini"),
        slo=Slo(2000.0, 80.0),
        scale_targets=(("l4", "serving/mini-l4"),),
    )
    combos = candidate_combos(cluster, mini, CONVERSATION, PROFILE)
    assert {combo.members[0].pool.split("/")[1] for combo in combos} == {"l4"}
    assert all(len(combo.members) == 1 for combo in combos)
    assert {Market(combo.members[0].pool.split("/")[2]) for combo in combos} == {
        Market.ON_DEMAND,
        Market.SPOT,
    }


def test_names_of_combos_are_read_back() -> None:
    model, members = parse_combo_id("a:b:2p4@us/h100/owned+3d1@us/l4/spot")
    assert model == "a:b"
    assert members == (
        (Phase.PREFILL, 4, "us/h100/owned", 2),
        (Phase.DECODE, 1, "us/l4/spot", 3),
    )


@pytest.mark.parametrize("name", ["", "mini", "mini:", "mini:a@x", "mini:z1@x", "mini:a1", ":a1@x"])
def test_an_invalid_combo_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="combo"):
        parse_combo_id(name)
