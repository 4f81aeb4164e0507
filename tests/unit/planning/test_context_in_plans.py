"""Plans assume requests that fit the declared `max_len`."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Service
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.planning.instances import evaluate_instance


def test_planned_answers_are_limited_by_max_len() -> None:
    """Answers have 8,000 tokens on average and at most 16,384. The limit reduces their spread, so
    capacity is higher.
    """
    service = Service(
        model="m",
        architecture=catalog.model("meta-llama/Llama-3.1-8B-Instruct"),
        slo=Slo(5000.0, 60.0),
        max_len_tokens=131_072,
    )
    lengths = Lengths.expected(500.0, 8000.0)
    node = NodeSlice(catalog.gpu("L40S"), 1)
    free = evaluate_instance(service, node, Phase.AGGREGATED, lengths, default_profile())
    cut = evaluate_instance(
        replace(service, max_len_tokens=16_384), node, Phase.AGGREGATED, lengths, default_profile()
    )
    assert cut.req_per_s > 1.1 * free.req_per_s
