"""Pipelines of the template library as candidate combos, with names, prices and plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.combo import Combo
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand, Phase, Slo
from autoscaler.explain.combo_labels import short_name
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.candidate_combos import candidate_combos, evaluate_combo
from autoscaler.planning.capacity_provenance import without_caution
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.pipelines import irreducible_pipelines
from autoscaler.planning.plan import PlanStatus
from autoscaler.planning.planning_problem import make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from tests.unit.planning.planning_clusters import CONVERSATION, pool, service

PROFILE = default_profile()
L40S = pool("r", "l40s", "L40S", 1, 12, Market.ON_DEMAND, 1.9)
A100 = pool("r", "a100", "A100-SXM-80GB", 1, 12, Market.ON_DEMAND, 4.0)
H100 = pool("r", "h100", "H100", 4, 2, Market.ON_DEMAND, 16.0)


def declared(pipelines: str, *pools: object) -> Cluster:
    """A cluster for Qwen3-32B in bf16: its 65 GB of weights are too much for one L40S."""
    model = service("m", "Qwen/Qwen3-32B", Slo(8000.0, 130.0), pipelines=pipelines)
    return Cluster(pools or (L40S,), (model,))  # type: ignore[arg-type]


def candidates(cluster: Cluster) -> tuple[Combo, ...]:
    return candidate_combos(cluster, cluster.services[0], CONVERSATION, PROFILE, keep=16)


def joined(combo: Combo) -> bool:
    return any(member.stage for member in combo.members)


def test_declared_pipelines_serve_a_model_too_large_for_any_node() -> None:
    assert candidates(declared("none")) == ()
    found = candidates(declared("same-slice"))
    assert found
    assert all(joined(combo) for combo in found)
    cluster = declared("same-slice")
    made = ShoalStrategy().solve(
        make_problem(cluster, {"m": Demand("m", 1.0, CONVERSATION)}, PROFILE)
    )
    assert made.status in (PlanStatus.OPTIMAL, PlanStatus.WITHIN_GAP)
    assert not made.shortfall_req_per_s
    used = sum(t.count * sum(t.combo.gpus_by_pool().values()) for t in made.targets)
    assert made.cost_usd_per_h == pytest.approx(used * 1.9)


@pytest.mark.parametrize("pipelines", ["same-slice", "same-size", "any"])
def test_stage_layers_add_up_and_every_stage_serves_the_rate(pipelines: str) -> None:
    cluster = declared(pipelines, L40S, A100, H100)
    layers = cluster.services[0].architecture.layers
    for combo in candidates(cluster):
        for phase in {member.phase for member in combo.members}:
            stages: dict[int, tuple[int, float]] = {}
            for member in combo.members:
                if member.phase is phase:
                    _, rate = stages.get(member.stage, (0, 0.0))
                    stages[member.stage] = member.layers, rate + member.count * member.req_per_s
            assert min(rate for _, rate in stages.values()) >= combo.req_per_s * (1 - 1e-9)
            if 0 not in stages:
                assert sum(held for held, _ in stages.values()) == layers
                assert sorted(stages) == list(range(1, len(stages) + 1))


def test_a_pipeline_is_rebuilt_from_its_name() -> None:
    cluster = declared("same-size", L40S, A100, H100)
    found = [combo for combo in candidates(cluster) if joined(combo)]
    assert found
    for combo in found:
        again = evaluate_combo(combo.id, cluster, cluster.services[0], CONVERSATION, PROFILE)
        assert again.id == combo.id
        assert again.members == combo.members
        assert again.req_per_s == pytest.approx(combo.req_per_s)
        assert again.usd_per_h == pytest.approx(combo.usd_per_h)


def test_rates_of_pipelines_equal_those_of_the_library() -> None:
    cluster = declared("same-slice")
    node = NodeSlice(L40S.gpu, 1)
    offered = irreducible_pipelines(
        cluster.services[0], Phase.PREFILL, (node,), CONVERSATION, PROFILE
    )
    best = max(pipeline.req_per_s / len(pipeline.stages) for pipeline in offered)
    assert best > 0.0
    for combo in candidates(cluster):
        prefill = [m for m in combo.members if m.phase is Phase.PREFILL]
        if not prefill:  # the library has no aggregated pipelines
            continue
        assert min(m.count * m.req_per_s for m in prefill) / sum(m.count for m in prefill) <= best


def test_a_single_node_engine_gets_no_pipelines() -> None:
    assert not any(joined(combo) for combo in candidates(declared("none", L40S, A100, H100)))


def test_a_pipeline_is_lost_with_any_of_its_nodes() -> None:
    """Capacity must survive the loss of one more node than the plan has spares. A lost node counts
    as a lost pipeline, not as one stage.
    """
    cluster = declared("same-slice", replace(L40S, max_nodes=40))
    safe = replace(
        cluster, services=(replace(cluster.services[0], survive="one-node", utilization=0.95),)
    )
    rate = 0.3
    made = ShoalStrategy().solve(
        make_problem(safe, {"m": Demand("m", rate, CONVERSATION)}, PROFILE)
    )
    assert not made.notes
    largest = max(t.combo.req_per_s for t in made.targets if t.count)
    assert made.capacity_req_per_s["m"] - largest >= rate - 1e-6


@pytest.mark.parametrize(
    "name",
    [
        "m:p1.40@r/a/spot",
        "m:>p1.40@r/a/spot",
        "m:p1.40@r/a/spot>p1@r/a/spot",
        "m:p1@r/a/spot>p1@r/b/spot",
        "m:p1.",
    ],
)
def test_an_incomplete_pipeline_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="combo"):
        parse_combo_id(name)


def test_stages_are_shown_with_an_arrow() -> None:
    cluster = declared("same-size", L40S, A100, H100)
    name = "m:p1.34@r/l40s/on-demand>p1.30@r/a100/on-demand+d2@r/h100/on-demand"
    combo = evaluate_combo(name, cluster, cluster.services[0], CONVERSATION, PROFILE)
    assert combo.id == name
    words = short_name(combo, {pool.id: pool for pool in cluster.pools})
    assert words == "(prefill 1xL40S > 1xA100 + 1 decode 2xH100) r on-demand"
    assert combo.usd_per_h == pytest.approx(1.9 + 4.0 + 16.0 / 2)


def test_a_model_that_is_not_split_into_phases_is_served_by_aggregated_pipelines() -> None:
    """Such a pipeline has at least two equal nodes and evenly spread layers. Its predicted capacity
    counts once.
    """
    cluster = declared("same-slice")
    whole = replace(cluster.services[0], disaggregate=False, cautious=True)
    cluster = replace(cluster, services=(whole,))
    found = candidates(cluster)
    assert found
    for combo in found:
        assert {member.phase for member in combo.members} == {Phase.AGGREGATED}
        assert sum(member.layers for member in combo.members) == 64
        assert len({member.layers for member in combo.members}) <= 2
        again = evaluate_combo(combo.id, cluster, whole, CONVERSATION, PROFILE)
        assert again == combo
        certain = replace(cluster, services=(replace(whole, cautious=False),))
        bold = evaluate_combo(combo.id, certain, certain.services[0], CONVERSATION, PROFILE)
        assert without_caution(combo, cluster, PROFILE).req_per_s == pytest.approx(bold.req_per_s)
    assert ">" in short_name(found[0], {pool.id: pool for pool in cluster.pools})
