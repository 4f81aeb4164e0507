"""Nodes, prices and combos for the tests of `decide`, and the real planner that
chooses among them.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

from autoscaler.domain.cluster import Cluster, Market, Mode, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import plain_profile
from autoscaler.planning import planner as planner
from autoscaler.planning import planning_problem as problems
from autoscaler.planning.combo_names import combo_id
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, no_plan_answer
from autoscaler.planning.strategies.shoal import ShoalStrategy
from topics.reason_codes import ReasonCode

BUCKET = Lengths(1000.0, 200.0)
LLAMA = catalog.model("meta-llama/Llama-3.1-8B")
GPU = catalog.gpu("L40S")
AGGREGATED, PREFILL, DECODE = Phase.AGGREGATED, Phase.PREFILL, Phase.DECODE


def pool(
    name: str = "l40s",
    nodes: int = 8,
    per_node: int = 4,
    market: Market = Market.ON_DEMAND,
    region: str = "us",
    usd: float = 8.0,
) -> Pool:
    """A pool of L40S nodes."""
    price = 0.0 if market is Market.OWNED else usd
    return Pool(region, name, GPU, per_node, nodes, market, price)


def service(model: str = "chat", **changes: object) -> Service:
    """A service in mode act with quick scale-in; plans load its instances to 80%."""
    settings: dict[str, object] = {
        "utilization": 0.8,
        "model": model,
        "architecture": LLAMA,
        "slo": Slo(1000.0, 50.0),
        "mode": Mode.ACT,
        "lengths": BUCKET,
        "min_instances": 1,
    }
    return Service(**{**settings, **changes})  # type: ignore[arg-type]


def combo(
    model: str, members: list[tuple[Phase, int, Pool, int, float]], start_s: float = 60.0
) -> Combo:
    """A combo; members: (phase, GPUs, pool, count, requests/s of one instance) of each phase."""
    rates: dict[Phase, float] = {}
    for phase, _, _, count, rate in members:
        rates[phase] = rates.get(phase, 0.0) + count * rate
    return Combo(
        id=combo_id(model, [(phase, gpus, p.id, count) for phase, gpus, p, count, _ in members]),
        model=model,
        region=members[0][2].region,
        members=tuple(
            ComboMember(phase, p.id, gpus, count, rate) for phase, gpus, p, count, rate in members
        ),
        req_per_s=min(rates.values()),
        usd_per_h=sum(
            count * gpus * p.price_usd_per_h / p.per_node for _, gpus, p, count, _ in members
        ),
        ttft_ms=300.0,
        tpot_ms=20.0,
        start_s=start_s,
    )


Catalogue = dict[str, tuple[Combo, ...]]
"""Combos from which the planner may choose, per model, each with its nodes and members."""


def simple(model: str, where: Pool, rate: float = 10.0, start_s: float = 60.0) -> tuple[Combo, ...]:
    """A catalogue with one combo: one GPU that serves `rate` requests/s."""
    return (combo(model, [(AGGREGATED, 1, where, 1, rate)], start_s),)


def combos(*made: Combo) -> tuple[Combo, ...]:
    """The combos of one model from which the planner may choose."""
    return made


class Planner:
    """The real planner with a given catalogue instead of combos from the performance model.

    Prices are those of the cluster in the request. asked: every request, in order. broken:
    urgencies whose answers contain no plan.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.asked: list[PlanRequest] = []
        self.broken: set[Urgency] = set()

    def answer(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        self.asked.append(request)
        if request.urgency in self.broken:
            return no_plan_answer(
                request, Reason(ReasonCode.SOLVER_ERROR, quoted="the solver was restarted")
            )
        with (
            mock.patch.object(problems, "candidate_combos", self._candidates),
            mock.patch.object(problems, "evaluate_combo", self._named),
            mock.patch.object(planner, "evaluate_combo", self._named),
        ):
            return planner.answer_request(request, cluster, plain_profile(), ShoalStrategy())

    def _candidates(self, cluster: Cluster, service: Service, *_: object) -> tuple[Combo, ...]:
        return tuple(
            self._priced(combo, cluster)
            for combo in self.catalogue.get(service.model, ())
            if all(self._usable(m.pool, cluster, service) for m in combo.members)
        )

    def _named(self, name: str, cluster: Cluster, service: Service, *_: object) -> Combo:
        for known in self.catalogue.get(service.model, ()):
            if known.id == name:
                return self._priced(known, cluster)
        raise InvalidValue("combo", name, "a combo of the catalogue")

    @staticmethod
    def _usable(pool_id: str, cluster: Cluster, service: Service) -> bool:
        where = next((p for p in cluster.pools if p.id == pool_id), None)
        return where is not None and where.max_nodes > 0

    @staticmethod
    def _priced(known: Combo, cluster: Cluster) -> Combo:
        usd = sum(
            m.count * m.gpus * cluster.pool(m.pool).price_usd_per_h / cluster.pool(m.pool).per_node
            for m in known.members
        )
        return replace(known, usd_per_h=usd)
