"""One run: processes, the broker between them, the load, and the faults of a scenario.

Controllers, nodes and gateways run in steps of a tenth of a second. Load arrives each second.
`promises` checks the world after each step.
"""

from __future__ import annotations

import math
import random
from collections import Counter

from autoscaler.domain.node_names import node_ids
from autoscaler.rollout.serving_group import combo_id_of
from loadtests.invariants import faults
from loadtests.invariants.checks import Broken, Promises
from loadtests.invariants.controller import KEYS, Controller, Unreachable
from loadtests.invariants.disk import Disk
from loadtests.invariants.gateways import Gateway
from loadtests.invariants.log import T0, Link, Log
from loadtests.invariants.nodes import EngineProcess, Node
from loadtests.invariants.scenario import Fault, Scenario
from loadtests.invariants.storage_faults import each_second
from streams.loop.tick_loop import TickResult
from topics.codec import encode
from topics.controls import Control
from topics.macs import Signer
from topics.records import Availability, Price
from topics.routing import RouteGroup

STEP_S = 0.1
_FEED_S = 20.0
NAMES = ("alpha", "beta")


class World:
    """One run; call `run` once."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(f"shoal world {scenario.seed}")
        self.now_s = 0.0
        self.running: Controller | None = None
        self.log = Log(self._process_now, scenario.transactional)
        self.cluster = scenario.cluster
        self.active: dict[str, list[Fault]] = {}
        self._turns: dict[tuple[str, bool], int] = {}
        self.rates: dict[str, float] = {}
        self.hit: dict[Fault, str] = {}
        self.lives = Counter[str]()
        self.controllers: dict[str, Controller] = {}
        self.promises = Promises(self)
        self.disk = Disk(random.Random(f"shoal disk {scenario.seed}"))
        self._signer = Signer(KEYS, self.log.clock_ms, "extreme")
        start = scenario.start_s
        self.nodes: dict[str, Node] = {
            name: Node(
                name, pool.id, pool.per_node, self.log, self._link(),
                lambda: self.rng.uniform(*start), self.rng,
            )
            for pool in self.cluster.pools
            for name in node_ids(pool)
        }  # fmt: skip
        self.gateways = [
            Gateway(f"gateway-{n}", self.log, self._link(), self.rng)
            for n in range(scenario.gateways)
        ]
        self._pending = sorted(
            [(f.at_s, 0, n, f) for n, f in enumerate(scenario.faults)]
            + [(f.until_s, 1, n, f) for n, f in enumerate(scenario.faults)],
        )
        self.paused_s: dict[str, float] = {}
        self._unsaid: list[Control] = []
        self._prices = {p.id: p.price_usd_per_h for p in self.cluster.pools}

    def run(self) -> list[Broken]:
        """Run to the end; returns the broken promises."""
        self.disk.install()
        try:
            return self._run()
        finally:
            for name in NAMES:
                self.kill(name)
            self.disk.remove_all()

    def _run(self) -> list[Broken]:
        for name in NAMES:
            self.start(name)
        steps = int(self.scenario.end_s / STEP_S)
        for step in range(1, steps + 1):
            self.now_s = step * STEP_S
            self._happen()
            for controller in list(self.controllers.values()):
                self._step(controller)
            for node in self.nodes.values():
                if step % (3 if node.processes else 10) == 0:
                    node.step(self.now_s)
            for gateway in self.gateways:
                gateway.step(self.now_s)
            if step % round(1 / STEP_S) == 0:
                self._second()
                self.promises.second()
        self.promises.end()
        return self.promises.broken

    def start(self, name: str) -> None:
        """Start a controller on host `name`."""
        self.lives[name] += 1
        skew_ms = int(1000 * self.scenario.skew_s[NAMES.index(name)])
        self.controllers[name] = Controller(
            name, self.lives[name], self.log, self._link(), self.now_s, skew_ms,
            lambda: self.cluster, self._ticked, self.rng,
            self.disk.folder if self.scenario.records else None,
        )  # fmt: skip

    def start_all(self) -> None:
        """Start the controllers that do not run."""
        for name in NAMES:
            if name not in self.controllers:
                self.start(name)

    def kill(self, name: str) -> None:
        """Kill the controller on host `name` (SIGKILL)."""
        controller = self.controllers.pop(name, None)
        if controller is not None:
            controller.kill()

    def leader(self) -> Controller | None:
        """Controller that leads now; None if none does."""
        return next((c for c in self.controllers.values() if c.leads), None)

    def links(self) -> list[Link]:
        """Connections of all processes to the broker."""
        found = [part.link for part in self.controllers.values()]
        found += [part.link for part in self.nodes.values()]
        return found + [part.link for part in self.gateways]

    def endpoints(self) -> dict[str, EngineProcess]:
        """Live processes by address."""
        return {
            process.endpoint: process
            for node in self.nodes.values()
            for process in node.processes.values()
        }

    def group_rate(self, group: RouteGroup) -> float:
        """Requests/s of the combo of `group`, by the planner's estimate."""
        return self.rates.get(combo_id_of(group.group), 1.0)

    def loads_of(self, model: str) -> float:
        """Present requests/s of `model`."""
        return self.scenario.loads[model].rate(self.now_s)

    def write(self, name: str, key: bytes | None, value: bytes | None) -> None:
        """Write a record with a valid signature of its usual writer, if the broker has the
        topic."""
        if self.log.away or name in self.log.absent:
            return
        self.log.append(name, key, value, self._signer.headers(name, key, value))

    def publish(self, name: str, key: str, record: object) -> None:
        """Write a record of a feed or a webhook."""
        self.write(name, key.encode(), encode(record))

    def operator_says(self, control: Control) -> None:
        """Write an operator's control record.

        If the broker is away, the record is written as soon as it returns.
        """
        self._unsaid.append(control)
        self._say()

    def _say(self) -> None:
        while self._unsaid and not self.log.away and "controls" not in self.log.absent:
            control = self._unsaid.pop(0)
            self.write("controls", control.topic_key.encode(), encode(control))
            if control.active:
                self.paused_s[control.scope] = self.now_s
            else:
                self.paused_s.pop(control.scope, None)

    def _link(self) -> Link:
        return Link(self.rng)

    def _process_now(self) -> float:
        return self.running.process.now_s if self.running else self.now_s

    def _step(self, controller: Controller) -> None:
        if controller.stopped:
            controller.process.sleep_until(self.now_s)
            return
        self.running = controller
        try:
            controller.process.run_until(self.now_s)
        except Unreachable:
            self.kill(controller.name)
            self.start(controller.name)
        finally:
            self.running = None
        if controller.link.cut and controller.link.fuse == 0:
            self.kill(controller.name)

    def _ticked(self, controller: Controller, done: TickResult) -> None:
        for name, combo in done.after.evaluated.combos.items():
            self.rates.setdefault(name, combo.req_per_s)
        self.promises.ticked(controller, done)

    def _happen(self) -> None:
        while self._pending and self._pending[0][0] <= self.now_s:
            _, over, _, fault = self._pending.pop(0)
            if over:
                faults.end(self, fault)
                self.active[fault.kind].remove(fault)
            else:
                self.active.setdefault(fault.kind, []).append(fault)
                faults.begin(self, fault)

    def _second(self) -> None:
        self._say()
        each_second(self)
        if self.now_s % _FEED_S < STEP_S:
            self._feed()
        arrivals = {
            model: poisson(self.rng, load.rate(self.now_s))
            for model, load in self.scenario.loads.items()
        }
        up = [gateway for gateway in self.gateways if gateway.up]
        processes = self.endpoints()
        for at, gateway in enumerate(up):
            part = {
                model: count * (at + 1) // len(up) - count * at // len(up)
                for model, count in arrivals.items()
            }
            gateway.second(self.now_s, part, processes, self.group_rate, len(up))
        for process in processes.values():
            sharing = sum(p.model == process.model for p in processes.values())
            waiting = sum(gateway.in_flight.get(process.model, 0) for gateway in up)
            process.in_flight = -(-waiting // sharing)
        for model in arrivals:
            completed = sum(gateway.completed.get(model, 0) for gateway in up)
            for ends in (True, False):  # a prefill instance finishes each request, too
                alike = [
                    p
                    for p in processes.values()
                    if p.model == model and p.serves(self.now_s) and (p.phase != "prefill") is ends
                ]
                turn = self._turns.get((model, ends), 0)
                for at, process in enumerate(alike):
                    # Instances finish requests in turn, so a slow stream reaches each of them.
                    place = (at - turn) % len(alike)
                    process.finished += (completed + len(alike) - 1 - place) // len(alike)
                self._turns[model, ends] = turn + completed

    def _feed(self) -> None:
        now_ms = T0 + int(self.now_s * 1000)
        for pool in self.cluster.pools:
            usd = self._prices[pool.id] * self.rng.uniform(0.9, 1.1)
            self._prices[pool.id] = usd = min(
                max(usd, 0.5 * pool.price_usd_per_h), 2.0 * pool.price_usd_per_h
            )
            self.promises.believable_usd.add((pool.id, usd))
            self.publish("supply.prices", pool.id, Price(pool.id, usd, now_ms))
            self.publish(
                "supply.availability", pool.id, Availability(pool.id, pool.max_nodes, now_ms)
            )


def poisson(rng: random.Random, mean: float) -> int:
    """A Poisson count. For a large mean it is drawn from the normal approximation."""
    if mean > 50.0:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, count, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        count += 1
        product *= rng.random()
    return count
