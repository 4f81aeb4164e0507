"""Coral's baselines against plans made by hand."""

from __future__ import annotations

import numpy as np

from loadtests.coral.instance import TemplateInstance
from loadtests.experiments.coral_allocation import judged
from loadtests.experiments.coral_baselines import cauchy, homo, replicas


def instance(demand: float = 4.0, nodes: int = 10) -> TemplateInstance:
    """One model, two configurations of 1 and 3 USD/h. Prefill 1 and 2 req/s alone, 5 with one node
    of each; decode 1 and 4 req/s alone."""
    pure = np.array([[1, 0], [0, 1]], dtype=np.uint8)
    return TemplateInstance(
        price_usd_per_h=np.array([[1.0, 3.0]]),
        available_nodes=np.array([[nodes, nodes]], dtype=np.int32),
        demand_req_per_s=np.array([demand, demand]),
        nodes=(np.vstack([pure, [[1, 1]]]).astype(np.uint8), pure),
        throughput_req_per_s=(np.array([1.0, 2.0, 5.0]), np.array([1.0, 4.0])),
        start_penalty=0.1,
    )


def test_baselines_know_homogeneous_replicas_only() -> None:
    """The template of both configurations would be the cheapest; neither baseline may use it."""
    made = instance()
    assert [(one.config, one.req_per_s) for one in replicas(made, 0)] == [(0, 1.0), (1, 2.0)]
    for rows in (homo(made), cauchy(made, [(0, 1)])):
        assert not any(group == 0 and template == 2 for group, _, template, _ in rows)


def test_homo_takes_the_most_goodput_per_dollar() -> None:
    """Prefill: 4 x 1 USD; decode: one node of 3 USD for 4 req/s."""
    assert sorted(map(tuple, homo(instance()).tolist())) == [(0, 0, 0, 4), (1, 0, 1, 1)]
    assert judged("homo", instance(), [(0, 1)], homo(instance()), 0.0).usd_per_h == 7.0


def test_homo_goes_on_with_the_next_kind_where_nodes_run_out() -> None:
    found = judged("homo", instance(nodes=3), [(0, 1)], homo(instance(nodes=3)), 0.0)
    assert found.served == 1.0
    assert found.usd_per_h == 9.0  # 3 x 1 and one of 3 for prefill, one of 3 for decode


def test_cauchy_matches_prefill_and_decode_and_serves_the_demand() -> None:
    rows = cauchy(instance(), [(0, 1)])
    found = judged("cauchy", instance(), [(0, 1)], rows, 0.0)
    assert found.served == 1.0
    assert found.usd_per_h >= 7.0


def test_cauchy_serves_what_it_can_where_demand_cannot_be_met() -> None:
    made = instance(demand=100.0, nodes=2)
    found = judged("cauchy", made, [(0, 1)], cauchy(made, [(0, 1)]), 0.0)
    assert 0.0 < found.served < 1.0
