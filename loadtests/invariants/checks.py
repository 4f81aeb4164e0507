"""Promises that must hold in every run: the lines of the table that a simulation can check.

Each check compares a promise with the true state of nodes and processes, or with a tick of the
leader. Checks are counted, so a report shows how often each promise was tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoscaler.decide import decide
from autoscaler.estimate.windows import Stats
from autoscaler.planning.planner_messages import Outcome, Urgency
from autoscaler.replan.rate_limit import MOST, WITHIN_MS
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.state.effects import PublishDecision, SolveRequested
from loadtests.invariants.faults import GHOST, model_of
from loadtests.invariants.log import T0
from loadtests.invariants.storage_checks import StorageChecks
from streams.loop.tick_loop import TickResult
from streams.solver.plan_verification import Verdict
from topics.fleet import InstanceState

if TYPE_CHECKING:
    from loadtests.invariants.controller import Controller
    from loadtests.invariants.simulated_run import World

_WAY_S = 3.0  # The delay of a record and two ticks
_TAKEOVER_S = 10.0
_IN_WINDOWS_S = 40.0  # Telemetry of an ended fault is still in the local window.
_EVERY = 40  # Every 40th tick is decided twice.
_EXACT_S = 40
_LEAVING = (Life.UNROUTED, Life.DRAINING)


@dataclass(frozen=True, slots=True)
class Broken:
    """A broken promise. line: its line in the table of promises."""

    line: str
    at_s: float
    what: str

    def __str__(self) -> str:
        return f"line {self.line} at {self.at_s:.1f} s: {self.what}"


class Promises:
    """Checks of one world. checked: number of checks of each line that could have failed. under:
    the same by line and kind of fault (`Scenario.kinds_at`).

    believable_usd: prices that feeds really published.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.broken: list[Broken] = []
        self.checked: Counter[str] = Counter()
        self.under: Counter[tuple[str, str]] = Counter()
        self.believable_usd: set[tuple[str, float]] = set()
        self._in_force: dict[str, tuple[int, int]] = {}
        self._led_s = 0.0
        self._ticked_s = 0.0
        self._full_ms: dict[str, list[int]] = {}
        self._said: set[str] = set()
        self._told: set[tuple[str, str]] = set()
        self._ticks = 0
        self._serving: set[str] = set()
        self._storage = StorageChecks(world, self._hold)

    # -- each tick of the leader --------------------------------------------------------------

    def ticked(self, controller: Controller, done: TickResult) -> None:
        """Check a tick that the leader has decided."""
        self._ticks += 1
        self._ticked_s = self._world.now_s
        self._said |= {e.record.reason for e in done.effects if isinstance(e, PublishDecision)}
        self._removals(controller, done)
        self._budgets(done)
        self._supply(done)
        self._solver(controller, done)
        self._silence(controller, done)
        self._storage.ticked(controller, done)
        if self._ticks % _EVERY == 0:
            again, effects = decide(done.before, done.observation, done.cluster, done.now_ms)
            self._hold("replay", (again, effects) == (done.after, done.effects),
                       "the same observation led to other decisions")  # fmt: skip

    def _removals(self, controller: Controller, done: TickResult) -> None:
        """Check lines 1 to 4 and 25: conditions that block a scale-in."""
        world, now_s = self._world, self._world.now_s
        for effect in done.effects:
            if not isinstance(effect, PublishDecision) or not effect.record.applied:
                continue
            decision = effect.record
            model = decision.model
            paused = world.paused_s.get(model)
            if paused is not None and decision.kind in (
                "scale_in",
                "scale_out",
                "replan",
                "replace",
            ):
                self._hold(
                    "25", now_s - paused <= _WAY_S, f"{decision.kind} of {model} while paused"
                )
            if decision.kind != "scale_in":
                continue
            gap_s = self._gap_s(model)
            self._hold("1", gap_s <= _WAY_S, f"scale-in of {model} {gap_s:.0f} s into a gap")
            zero = self._since("false zero", model, _IN_WINDOWS_S)
            left = sum(_rate(g, done) for g in done.after.groups if g.model == model and g.counts)
            false = zero is not None and now_s - zero > _WAY_S and left < world.loads_of(model)
            self._hold("2", not false, f"scale-in of {model} on a false zero")
            strain = self._since("strain", model)
            bad = strain is not None and now_s - strain > 20.0 and world.loads_of(model) > 1.0
            self._hold("3", not bad, f"scale-in of {model} while it misses its SLO")
            seen_s = (done.now_ms - done.after.term.started_ms) / 1000.0
            window_s = done.cluster.policy.local_window_s
            self._hold("4", seen_s >= window_s, f"scale-in of {model} {seen_s:.0f} s after a start")

    def _gap_s(self, model: str) -> float:
        gap = self._since("telemetry gap", model)
        return 0.0 if gap is None else self._world.now_s - gap

    def _since(self, kind: str, model: str, after_s: float = 0.0) -> float | None:
        """Return the second at which a fault of `kind` began to hit `model`; None if there is no
        such fault, and none ended in the last `after_s`."""
        for fault in self._world.scenario.faults:
            if fault.kind != kind or not fault.at_s <= self._world.now_s < fault.until_s + after_s:
                continue
            everything = kind == "telemetry gap" and fault.pick < 0.3
            if everything or model_of(self._world, fault) == model:
                return fault.at_s
        return None

    def _budgets(self, done: TickResult) -> None:
        """Check lines 6 and 20: how many groups of a model leave at a time, and how many remain."""
        before = {group.name: group for group in done.before.groups}
        for group in done.after.groups:
            was = before.get(group.name)
            left = group.life is Life.UNROUTED and was is not None and was.life is Life.RETIRING
            if not left or group.failed_ms or _reclaimed(group, done):
                continue
            service = next((s for s in done.cluster.services if s.model == group.model), None)
            if service is None:
                continue
            own = [g for g in done.after.groups if g.model == group.model]
            if _ready(group, done):
                self._serving.add(
                    group.name
                )  # the removal of a group that does not serve costs no capacity
            leaving = [g for g in own if g.life in _LEAVING and g.name in self._serving]
            rate = {g.name: _rate(g, done) for g in own}
            total = sum(rate[g.name] for g in own if _ready(g, done) or g in leaving)
            taken = sum(rate[g.name] for g in leaving)
            others = [g for g in leaving if g.name != group.name]
            within = not others or taken <= service.max_disruption * total + 1e-6
            within = within or (not was.exit.after and self._is_surplus(group, own, done))
            self._hold("6", within, f"{len(leaving)} groups of {group.model} leave at once")
            if group.exit.yields:
                continue  # The plan makes room for something larger, or for another model.
            stays = [g for g in own if g.life in (Life.ACTIVE, Life.RETIRING) and _ready(g, done)]
            wanted = sum(g.counts for g in own)
            floor = min(service.min_instances, wanted)
            self._hold(
                "20", len(stays) >= floor, f"{group.name} leaves {len(stays)} of {floor} ready"
            )

    def _is_surplus(self, group: ServingGroup, own: list[ServingGroup], done: TickResult) -> bool:
        """Whether the ready groups except `group` cover the whole planned demand.

        False while a fault hides or distorts the model's demand.
        """
        model = group.model
        strain = self._since("strain", model)
        hidden = self._gap_s(model) > _WAY_S or self._since("false zero", model) is not None
        late = strain is not None and self._world.now_s - strain > 20.0
        if hidden or late or group.exit.yields or done.observation.lag_ms:
            return False
        state, service = done.before.models[model], done.cluster.service(model)
        needed = state.target.req_per_s / (service.utilization * state.capacity.derate)
        stays = [g for g in own if g.life in (Life.ACTIVE, Life.RETIRING) and _ready(g, done)]
        return sum(_rate(g, done) for g in stays) >= needed - 1e-6

    def _supply(self, done: TickResult) -> None:
        """Check line 15: plans use only prices that a feed really published."""
        for pool, price in done.after.supply.prices.items():
            known = (pool, price.usd_per_h) in self.believable_usd
            self._hold("15", known, f"{pool} is believed to cost {price.usd_per_h}")

    def _solver(self, controller: Controller, done: TickResult) -> None:
        """Check lines 18 and 23: a missing answer changes nothing; full plans keep to a limit."""
        for opinion in controller.solver.opinions:
            same = opinion.verdict is not Verdict.DISAGREES
            self._hold("plans", same, f"a second solver disagrees: {opinion}")
        controller.solver.opinions.clear()
        answers = done.observation.answers
        if answers and all(answer.outcome is Outcome.NONE for answer in answers):
            said = [e.record for e in done.effects if isinstance(e, PublishDecision)]
            removed = [decision for decision in said if decision.kind == "scale_in"]
            self._hold("18", not removed, "a scale-in without a plan")
        asked = self._full_ms.setdefault(controller.election.boot, [])
        for effect in done.effects:
            if isinstance(effect, SolveRequested) and effect.request.urgency is Urgency.FULL:
                asked.append(done.now_ms)
                recent = sum(done.now_ms - at_ms < WITHIN_MS for at_ms in asked)
                self._hold("23", recent <= MOST, f"{recent} full plans within a minute")

    def _silence(self, controller: Controller, done: TickResult) -> None:
        """Check lines 1 and 17: a telemetry gap is marked, and no reporting node counts as lost."""
        term_s = controller.clock.now_s() - controller.loop.seated_s
        for model, state in done.after.models.items():
            if self._gap_s(model) > _WAY_S + 1.0 and term_s > _WAY_S:
                self._hold("1", state.estimate.no_data, f"{model} is not marked NoData in a gap")
        for name in done.after.observed.silent_nodes - done.before.observed.silent_nodes:
            node = self._world.nodes.get(name)
            status = done.observation.statuses.get(name)
            now_s, scenario = self._world.now_s, self._world.scenario
            if node is None or status is None or not scenario.calm(now_s - 20.0, now_s):
                continue
            silent = not (node.up and node.executor_up) or node.link.cut or term_s < 20.0
            self._hold("17", silent, f"{name} is taken for lost while it speaks")

    # -- each second --------------------------------------------------------------------------

    def second(self) -> None:
        """Check the world as it is now."""
        self._nodes()
        self._leaders()
        if round(self._world.now_s) % 10 == 0:
            self._clocks()

    def _nodes(self) -> None:
        """Check lines 8 and 9: one process per GPU, starts only after a failure or restart, and
        assignments that only go forward and come from a legitimate leader.
        """
        for node in self._world.nodes.values():
            gpus = [gpu for p in node.processes.values() for gpu in p.gpus]
            self._hold("8", len(gpus) == len(set(gpus)), f"{node.name}: two processes on a GPU")
            for held in node.state.instances:
                most = 1 + held.restarts + held.failures
                count = node.launches.get(held.instance, 0)
                self._hold("8", count <= most, f"{held.instance} was started {count} times")
            found = node.state.assignment
            if found is not None:
                order = found.leader_token, found.generation
                last = self._in_force.get(node.name, (0, 0)) if node.up else (0, 0)
                self._hold("9", order >= last, f"{node.name} went back from {last} to {order}")
                self._hold("9", found.leader_token != GHOST, f"{node.name} follows a ghost")
                self._in_force[node.name] = order
            if not node.up:
                self._in_force.pop(node.name, None)

    def _leaders(self) -> None:
        """Check line 11: there is at most one leader, and a new leader follows soon."""
        world = self._world
        leading = [c.name for c in world.controllers.values() if c.leads]
        self._hold("11", len(leading) <= 1, f"{' and '.join(leading)} lead at the same time")
        healthy = [c for c in world.controllers.values() if not (c.stopped or c.link.cut)]
        hindered = world.log.away or bool(world.log.absent) or any(
            world.active.get(k) for k in ("slow network", "lost writes", "no acknowledgement",
                                          "leadership deleted")
        )  # fmt: skip
        if leading or not healthy or hindered:
            self._led_s = world.now_s
        limit_s = _TAKEOVER_S if world.now_s > 20 else 20.0
        alone_s = world.now_s - self._led_s
        self._hold("11", alone_s <= limit_s, f"no leader for {alone_s:.0f} s")
        if not leading or hindered:
            self._ticked_s = max(self._ticked_s, self._led_s)
        quiet_s = world.now_s - self._ticked_s
        # A leader that knows no assignment, because its keys were deleted, hears the nodes first.
        hears = any(c.leads and not c.latest.desired.assignments for c in healthy)
        limit_s = _TAKEOVER_S + (world.cluster.policy.node_silent_s if hears else 0.0)
        self._hold("11", quiet_s <= limit_s, f"no decision for {quiet_s:.0f} s")

    def _clocks(self) -> None:
        """Check line 16: no window is ahead of its controller's clock, whatever time stamps records
        have."""
        for controller in self._world.controllers.values():
            if controller.stopped:
                continue
            now_ms = controller.clock.now_ms()
            for service in self._world.cluster.services:
                newest = controller.windows.newest_ms(service.model, now_ms)
                self._hold("16", newest is None or newest <= now_ms, f"{service.model} is ahead")

    # -- the end ------------------------------------------------------------------------------

    def end(self) -> None:
        """Check that everything has converged after the quiet time at the end."""
        world = self._world
        leader = world.leader()
        self._hold("end", leader is not None, "no controller leads")
        if leader is None:
            return
        state = leader.loop.state
        for node in world.nodes.values():
            if not node.up:
                continue
            wanted = state.published.assignments.get(node.name)
            told = {i.instance for i in wanted.instances if not i.drain} if wanted else set()
            runs = {
                h.instance for h in node.state.instances
                if h.state in (InstanceState.STARTING, InstanceState.READY)
            }  # fmt: skip
            starts = any(g.created_ms > _now_ms(leader) - 15_000 for g in state.groups)
            self._hold("end", runs == told or starts, f"{node.name} runs {runs}, wanted {told}")
        for gateway in world.gateways:
            for model, routes in state.published.routes.items():
                router = gateway.table.routers.get(model)
                has = router.routes.generation if router and router.routes else 0
                fresh = routes.issued_ms > _now_ms(leader) - 5_000
                what = f"{gateway.name} has routes {has} of {model}, not {routes.generation}"
                self._hold("end", has >= routes.generation or fresh, what)
        for service in world.cluster.services:
            self._served(leader, service.model, service.min_instances)
        self._rates(leader)
        self._storage.end(leader)
        strays = [
            f for f in world.scenario.faults if f.kind == "stray" and f.until_s - f.at_s >= 29
        ]
        for fault in strays:
            said = any(f"by-hand-{fault.at_s:.0f}" in reason for reason in self._said)
            heard = world.scenario.calm(fault.at_s, fault.until_s)
            self._hold("26", said or not heard, f"no decision mentions {fault}")

    def _served(self, leader: Controller, model: str, floor: int) -> None:
        """Check that enough instances are ready, or that the controller reports the reason."""
        world, state = self._world, leader.loop.state
        groups = [
            g for g in state.groups if g.model == model and g.life in (Life.ACTIVE, Life.RETIRING)
        ]
        ready = [
            g for g in groups if all(p.instance in world.nodes[p.node].ready() for p in g.placed)
        ]
        rate = world.scenario.loads[model].rate(world.now_s)
        capacity = sum(world.rates.get(g.combo_id, 0.0) for g in ready)
        excused = bool(state.models[model].infeasibility.retry_at_ms > _now_ms(leader))
        excused = excused or any(m.strikes for m in state.observed.backoff.values())
        self._hold("end", capacity >= 0.8 * rate or excused,
                   f"{model}: {capacity:.1f} req/s ready for {rate:.1f}")  # fmt: skip
        self._hold("end", len(ready) >= floor or excused, f"{model}: {len(ready)} of {floor} ready")

    def _rates(self, leader: Controller) -> None:
        """Check line 13: the leader's window has exactly the requests that gateways reported. Each
        record counts once.
        """
        world = self._world
        now_ms = _now_ms(leader)
        skew_s = round((now_ms - T0) / 1000.0 - leader.process.now_s)
        for service in world.cluster.services:
            stats = leader.windows.stats(service.model, now_ms - 5_000, _EXACT_S)
            end_s = (now_ms - 5_000) // 1000 - skew_s
            told = sum(
                gateway.told.get((service.model, second + 1), 0)
                for gateway in world.gateways
                for second in range(end_s - _EXACT_S, end_s)
            )
            if isinstance(stats, Stats) and told > 100:
                off = abs(stats.arrivals - told) / told
                self._hold(
                    "13", off <= 0.05, f"{service.model}: {stats.arrivals} counted of {told}"
                )

    def _hold(self, line: str, good: bool, what: str) -> None:
        """Count a check. Each broken promise is recorded only once."""
        self.checked[line] += 1
        for kind in self._world.scenario.kinds_at(self._world.now_s):
            self.under[line, kind] += 1
        if not good and (line, what) not in self._told:
            self._told.add((line, what))
            self.broken.append(Broken(line, self._world.now_s, what))


def _now_ms(controller: Controller) -> int:
    return controller.clock.now_ms()


def _rate(group: ServingGroup, done: TickResult) -> float:
    combo = done.after.evaluated.combos.get(group.combo_id)
    return combo.req_per_s if combo else 0.0


def _ready(group: ServingGroup, done: TickResult) -> bool:
    """Whether executors report every instance of the group as ready."""
    return _states(group, done) == {InstanceState.READY}


def _states(group: ServingGroup, done: TickResult) -> set[InstanceState | None]:
    found: set[InstanceState | None] = set()
    for placed in group.placed:
        status = done.observation.statuses.get(placed.node)
        instances: Iterable[object] = status.instances if status else ()
        found.add(
            next((i.state for i in instances if i.instance == placed.instance), None)  # type: ignore[attr-defined]
        )
    return found


def _reclaimed(group: ServingGroup, done: TickResult) -> bool:
    statuses = done.observation.statuses
    return any(p.node in statuses and statuses[p.node].reclaim_ms for p in group.placed)
