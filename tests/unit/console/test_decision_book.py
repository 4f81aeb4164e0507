"""The context of decisions: what was measured, and what the fleet costs before and after nodes
leave."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Mode
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.estimate.windows import Stats
from autoscaler.rollout.serving_group import Life
from autoscaler.state.effects import PublishDecision, PublishPlan
from streams.console.decision_book import DecisionBook
from streams.loop.tick_loop import TickResult
from tests.unit.console.console_world import world
from topics.decisions import Decision, PlanRecord

SEEN = Stats(60, 0, 150, 150, 0, 0, 150, 2.5, None, None, None, None)


async def test_a_decision_has_the_measured_demand_and_the_cost_without_leaving_nodes() -> None:
    async with world(models=("big", "tiny"), mode=Mode.ACT) as at:
        done: list[TickResult] = []
        at.loop.watchers = (*at.loop.watchers, done.append)
        at.run(3)
        last = done[-1]
        assert {group.model for group in last.after.groups} == {"big", "tiny"}
        leaving = tuple(
            replace(group, life=Life.RETIRING) if group.model == "big" else group
            for group in last.after.groups
        )
        node = next(g.placed[0].node for g in leaving if g.model == "tiny")
        pool = last.after.published.assignments[node].pool
        demand = {"tiny": replace(UNKNOWN_DEMAND, local=SEEN)}
        records = (
            PublishPlan(PlanRecord(7, 3, last.now_ms, "full", 5.0, 0.0)),
            PublishDecision(Decision(8, 3, "tiny", "replan", last.now_ms, True, "moved")),
            PublishDecision(Decision(9, 3, "big", "replan", last.now_ms, True, "moved")),
        )
        book = DecisionBook()
        book.tick(
            replace(
                last, after=replace(last.after, groups=leaving), effects=records,
                observation=replace(last.observation, demand=demand),
            )
        )  # fmt: skip
        tiny, big = book.add([one.record for one in records[1:]])
        assert (tiny["plan_usd"], tiny["kept_usd"]) == (
            5.0, last.cluster.prices_usd_per_h()[pool],
        )  # fmt: skip
        assert (tiny["measured"], big["measured"]) == (2.5, None)
