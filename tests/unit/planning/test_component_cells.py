"""Cells as combos: names, rates at another mix, plans, explanations, and the wire format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.explain.combo_labels import change_words
from autoscaler.explain.component_texts import saturated_deployments
from autoscaler.explain.plan_explanation import explain
from autoscaler.modes.components.component_cells import (
    candidate_cells,
    evaluate_cell,
)
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.planner import answer_request, explained_plan
from autoscaler.planning.planner_messages import Outcome, PlanRequest, Urgency
from autoscaler.rollout.assignments import slots
from autoscaler.rollout.bin_packing import place
from autoscaler.rollout.component_routes import cell_route
from autoscaler.rollout.serving_group import GroupView, Placed, ServingGroup
from autoscaler.simulation.strategies.registry import strategy
from streams.files.shoal_yaml import load_config
from streams.solver import solver_wire

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "components.yaml"


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return load_config(EXAMPLE).cluster


def _graph(cluster: Cluster) -> ComponentGraph:
    graph = cluster.services[0].graph
    assert graph is not None
    return graph


def _busy(cell: Combo, cluster: Cluster) -> dict[tuple[str, str], float]:
    """Seconds of work that arrive per second, by deployment and pool."""
    found: dict[tuple[str, str], float] = {}
    for path in cell.paths:
        for hop in path.hops:
            gpu = cluster.pool(hop.pool).gpu.name
            each = _graph(cluster).seconds(gpu)[hop.deployment, frozenset(hop.runs)]
            key = hop.deployment, hop.pool
            found[key] = found.get(key, 0.0) + path.req_per_s * each
    return found


def test_the_instances_of_every_cell_can_serve_its_rate(cluster: Cluster) -> None:
    graph = _graph(cluster)
    found = candidate_cells(graph, cluster.pools)
    assert found
    for cell in found:
        for kind in graph.types:
            rate = sum(path.req_per_s for path in cell.paths if path.type == kind.name)
            assert rate == pytest.approx(cell.req_per_s * kind.share, rel=1e-6)
        counts = {(m.deployment, m.pool): m.count for m in cell.members}
        for key, work in _busy(cell, cluster).items():
            assert work <= counts[key] * (1.0 + 1e-6)
        assert saturated_deployments(cell, graph, cluster.pools)


def test_a_cell_is_rebuilt_from_its_name_and_invalid_names_are_refused(cluster: Cluster) -> None:
    graph = _graph(cluster)
    for cell in candidate_cells(graph, cluster.pools):
        again = evaluate_cell(cell.id, graph, cluster.pools)
        assert again.id == cell.id
        assert again.req_per_s == pytest.approx(cell.req_per_s, rel=1e-6)
    for wrong in ("omni:a1@us-east/a100/on-demand", "omni:c1.talker@us-east/a100/on-demand",
                  "omni:c1.nobody@us-east/a100/on-demand"):  # fmt: skip
        with pytest.raises(InvalidValue, match="a cell"):
            evaluate_cell(wrong, graph, cluster.pools)


def test_a_heavier_mix_lowers_the_rate_of_a_cell(cluster: Cluster) -> None:
    graph = _graph(cluster)
    spoken = graph.with_shares({"text": 0.1, "photo": 0.1, "voice": 0.8})
    cell = candidate_cells(graph, cluster.pools)[0]
    assert evaluate_cell(cell.id, spoken, cluster.pools).req_per_s < 0.8 * cell.req_per_s


def _plan_request(
    rate: float, mix: dict[str, float], fleet: tuple[tuple[str, int], ...]
) -> PlanRequest:
    cluster = load_config(EXAMPLE).cluster
    demand = Demand("omni", rate, cluster.services[0].lengths, 1.0, tuple(mix.items()))
    return PlanRequest(1, Urgency.FULL, 0, (demand,), fleet)


def test_the_planner_covers_the_demand_with_cells_and_adapts_to_the_mix(cluster: Cluster) -> None:
    """The second plan starts from the first one and covers the demand of the shifted mix."""
    shoal = strategy("shoal")
    declared = {kind.name: kind.share for kind in _graph(cluster).types}
    first = answer_request(_plan_request(12.0, declared, ()), cluster, default_profile(), shoal)
    assert first.outcome is Outcome.PLANNED
    held = {combo.id: combo.req_per_s for combo in first.combos}
    assert sum(held[i] * n for i, n in first.counts) * 0.8 >= 12.0 * (1 - 1e-6)
    same = answer_request(
        _plan_request(12.0, declared, first.counts), cluster, default_profile(), shoal
    )
    assert same.counts == first.counts
    spoken = {"text": 0.1, "photo": 0.1, "voice": 0.8}
    shifted = answer_request(
        _plan_request(12.0, spoken, first.counts), cluster, default_profile(), shoal
    )
    assert shifted.outcome is Outcome.PLANNED
    heavier = _graph(cluster).with_shares(spoken)
    rates = {i: evaluate_cell(i, heavier, cluster.pools).req_per_s for i, _ in shifted.counts}
    assert sum(rates[i] * n for i, n in shifted.counts) * 0.8 >= 12.0 * (1 - 1e-6)


def test_the_explanation_names_saturated_stages(cluster: Cluster) -> None:
    made = explained_plan(
        _plan_request(6.0, {}, ()), cluster, default_profile(), strategy("shoal"), "omni"
    )
    assert made is not None
    said = explain(*made, default_profile(), strategy("shoal"))
    assert any("saturated: " in why for why in said.models[0].bound_by)


def test_a_cell_is_named_after_its_deployments() -> None:
    cell = "omni:c1.audio@us/a100/on-demand+3c1.talker@us/a100/on-demand+c1.llm@us/l40s/spot"
    assert change_words([(cell, 1), ("omni:c1.all@us/a100/on-demand", -2)]) == (
        "+1 (audio, 3 talker) on a100 us on-demand + llm on l40s us spot, "
        "-2 all on a100 us on-demand"
    )


def test_a_component_model_survives_the_pipe_to_the_solver(cluster: Cluster) -> None:
    request = _plan_request(6.0, {}, ())
    assert solver_wire.decode_request(solver_wire.encode_request(request, cluster)) == (
        request,
        cluster,
    )
    found = answer_request(request, cluster, default_profile(), strategy("shoal"))
    assert solver_wire.decode_answer(solver_wire.encode_answer(found)) == found


def _placed_cell(cluster: Cluster) -> tuple[Combo, ServingGroup]:
    cell = next(c for c in candidate_cells(_graph(cluster), cluster.pools) if len(c.members) > 2)
    found = place(cell, 7, cluster, {}, {})
    assert found is not None
    group = ServingGroup(f"{cell.id}:7", "omni", cell.id, "default", found[0], 0)
    return cell, group


def _ready(placed: tuple[Placed, ...]) -> GroupView:
    ends = tuple((one, f"h:{n}") for n, one in enumerate(placed))
    return GroupView(ends, False, "", False)


def test_a_cell_is_routed_when_every_stage_has_an_instance(cluster: Cluster) -> None:
    cell, group = _placed_cell(cluster)
    whole = cell_route(group, _ready(group.placed), cell, None)
    assert whole is not None
    assert whole.weight == pytest.approx(cell.req_per_s, rel=1e-4)
    assert {p.deployment for p in group.placed} == {s.name for s in whole.stages}
    assert sum(p.req_per_s for p in whole.paths) == pytest.approx(cell.req_per_s, rel=1e-4)
    assert slots(cell, group.placed[0], cluster.services[0].lengths) == 0
    alone = next(m for m in cell.members if m.count == 1)
    without = tuple(p for p in group.placed if p.deployment != alone.deployment)
    assert cell_route(group, _ready(without), cell, None) is None


def test_a_cell_that_is_partly_ready_gets_its_part_and_keeps_its_paths(cluster: Cluster) -> None:
    """After a restart the cell has no rate yet. Until it has one, its published routes stay."""
    cell, group = _placed_cell(cluster)
    many = max(cell.members, key=lambda m: m.count)
    gone = next(p for p in group.placed if p.deployment == many.deployment)
    view = _ready(tuple(p for p in group.placed if p != gone))
    part = cell_route(group, view, cell, None)
    assert part is not None
    assert part.weight == pytest.approx(cell.req_per_s * (many.count - 1) / many.count, rel=1e-3)
    assert cell_route(group, view, None, None) is None
    kept = cell_route(group, view, None, part)
    assert kept is not None and kept.paths == part.paths


def test_prices_decide_between_cells_of_equal_rate(cluster: Cluster) -> None:
    """Expensive slow GPUs get no stage."""
    pools = tuple(
        replace(pool, price_usd_per_h=500.0) if pool.name == "l40s" else pool
        for pool in cluster.pools
    )
    dear = replace(cluster, pools=pools)
    found = answer_request(_plan_request(6.0, {}, ()), dear, default_profile(), strategy("shoal"))
    assert found.counts and not any("l40s" in combo for combo, _ in found.counts)
