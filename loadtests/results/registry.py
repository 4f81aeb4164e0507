"""All results: one entry for each record."""

from __future__ import annotations

from functools import partial

from loadtests import (
    fleet_day,
    paper_points,
    perturbed,
    public_points,
    scorecard,
    sizing_bench,
    start_logs,
)
from loadtests.experiments import (
    boute,
    cauchy_allocation,
    cauchy_routing,
    coral_models,
    coral_scarce,
    cornserve,
    demystifying,
    optimizer_scale,
)
from loadtests.results.entry import Entry
from loadtests.scorecard_scenarios import SCENARIOS

_THREE, _FIVE = (1, 2, 3), (1, 2, 3, 4, 5)
_PAPERS = (
    Entry("coral-core", "experiments", "Coral, cost, core setup",
          partial(coral_models.measure, setup="core", library="coral")),
    Entry("coral-extended", "experiments", "Coral, cost, extended setup",
          partial(coral_models.measure, setup="extended", library="coral")),
    Entry("coral-vllm", "experiments", "Coral, cost, core setup with deployments of vLLM",
          partial(coral_models.measure, setup="core", library="vllm")),
    Entry("coral-scarce", "experiments", "Coral, scarce nodes",
          partial(coral_scarce.measure, setup="core"), _FIVE),
    Entry("optimizer", "experiments", "The optimizer at the papers' scale",
          optimizer_scale.measure, _THREE, by_figure={"cpu_s": 2.0}),
    Entry("cauchy-allocation", "experiments", "Cauchy, allocation", cauchy_allocation.measure),
    Entry("cauchy-routing", "experiments", "Cauchy, routing", cauchy_routing.measure, _FIVE),
    Entry("demystifying", "experiments", "Demystifying, budgets", demystifying.measure),
    Entry("boute", "experiments", "BOute, quality and cost", boute.measure, _FIVE),
    Entry("cornserve", "experiments", "Cornserve, components", cornserve.measure),
)  # fmt: skip
_PREDICTIONS = (
    Entry("public-points", "predictions", "Predictions of public benchmarks",
          public_points.measure,
          inputs=("loadtests/data/public_points.csv", "loadtests/data/public_models.json")),
    Entry("paper-points", "predictions", "Throughputs that two papers print",
          paper_points.measure, inputs=("loadtests/data/paper_points.csv",)),
    Entry("start-logs", "predictions", "Predictions of the KV cache", start_logs.measure,
          inputs=("loadtests/data/start_logs.json", "tests/data/checkpoints/facts.json.gz")),
    Entry("sizing", "predictions", "Sizing against simulated engines", sizing_bench.measure,
          _THREE),
)  # fmt: skip
_SCORECARD = tuple(
    Entry(f"scorecard-{one.name}", "scorecard", f"Policies on the trace {one.name}",
          partial(scorecard.measure, name=one.name), _THREE, one.inputs)
    for one in SCENARIOS
)  # fmt: skip
_OTHERS = (
    Entry("worlds", "scorecard", "Worlds that differ from the predictions", perturbed.measure,
          _THREE, perturbed.INPUTS),
    Entry("fleet-day", "fleet-day", "Six hours of twelve models", fleet_day.measure, _THREE,
          fleet_day.INPUTS),
)  # fmt: skip
ENTRIES = (*_SCORECARD, *_OTHERS, *_PREDICTIONS, *_PAPERS)
