"""One run: the stack, the observer, and a series of faults with the checks after each."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from aiohttp import ClientError, ClientSession, ClientTimeout

from autoscaler.estimate.windows import Stats
from loadtests.chaos.fault import Fault
from loadtests.chaos.script import order
from loadtests.chaos.stack import CONTROLLERS, GATEWAYS, MODELS, Stack
from loadtests.chaos.watch import Host, Topics
from loadtests.session_load import SessionLoad
from topics.fleet import InstanceState

_FIRST_S = 180.0
_USERS = 20
"""Five for each model on each gateway: together about 2 requests/s for each model."""
_POLL_S = 0.25
_GIVE_UP_S = 120.0
_STEADY_S = 5.0
_WINDOW_S = 60
_SCRAPES = 8
_OFF = 0.01
_LOOKS = 3
_SERVES_S = 15.0
_FLOOR = 2
_OVERWRITTEN_S = 6.0
"""Time for a leader to overwrite foreign records, and to delete keys of undeclared names."""


@dataclass(slots=True)
class Outcome:
    """Result of one fault. at_s, until_s: its begin and end, in seconds from the start of the run.
    well_s: seconds from its end until the stack was healthy again; -1 if it never was. stall_s:
    stall of the host during the fault. takeover_s: seconds until another controller led; -1 without
    a takeover. failed: number of requests without an answer. started: number of new instances.
    """

    fault: str
    lines: str
    hit: str
    at_s: float
    until_s: float
    well_s: float
    limit_s: float
    stall_s: float
    takeover_s: float = -1.0
    rate_off: float = -1.0
    failed: int = 0
    started: int = 0
    broken: list[str] = field(default_factory=list)


class Chaos:
    """State of a run, for faults and checks. hit: target of the present fault. poison: positions of
    invalid records, each of which must get one dead letter. complaints: broken promises that the
    present fault found itself. bases: time bases of executors with a wrong clock.
    """

    def __init__(
        self,
        stack: Stack,
        seed: int,
        embedded: bool,
        say: Callable[[str], None],
        *,
        killable: bool = False,
    ) -> None:
        self.stack, self.embedded, self._killable = stack, embedded, killable
        self.rng = random.Random(f"shoal chaos {seed}")
        self.topics, self.host = Topics(), Host()
        gateways = {name: f"http://127.0.0.1:{stack.ports[name]}" for name in GATEWAYS}
        self.load = SessionLoad(gateways, MODELS, _USERS, stack.folder / "locust.log", seed=seed)
        self.requests = self.load.requests
        self.hit = ""
        self.engine_pid = 0
        self.poison: set[tuple[str, int, int]] = set()
        self.complaints: list[str] = []
        self.bases = {stack.base.format()}
        self.began_s = time.monotonic()
        self.outcomes: list[Outcome] = []
        self._say = say
        self._why = ""

    async def run(self, minutes: float, only: str = "") -> None:
        """Inject faults for `minutes`. only: name of the single fault to inject, "" for all."""
        tasks = [
            asyncio.create_task(self.topics.follow(self.stack, self.embedded)),
            asyncio.create_task(self.load.run()),
            asyncio.create_task(self.host.run()),
        ]
        try:
            if await self._well(_FIRST_S) < 0:
                raise RuntimeError(f"the stack did not come up: {self._why}")
            self._say(f"all is well after {self._now():.0f} s")
            end_s = self._now() + 60.0 * minutes
            waiting: list[Fault] = []
            while self._now() < end_s:
                waiting = waiting or order(self.rng, self.embedded, only, killable=self._killable)
                fault = waiting.pop()
                if self._now() + fault.lasts_s[0] > end_s:
                    break
                outcome = await self._fault(fault)
                self.outcomes.append(outcome)
                self._say(line(outcome, len(self.outcomes), end_s - self._now()))
                await asyncio.sleep(2.0)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if differs := self.load.unread():
            raise RuntimeError(differs)

    def _now(self) -> float:
        return time.monotonic() - self.began_s

    async def _fault(self, fault: Fault) -> Outcome:
        leader = self.stack.leader()
        launched = {name: set(times) for name, times in self.topics.launches.items()}
        said = len(self.topics.decisions)
        spare = {model for model, count in self._assigned_instances().items() if count > _FLOOR}
        stalled, late = self.stack.waited_s(), self.host.late_s
        at_s, began = self._now(), time.monotonic()
        await fault.begin(self, self.rng)
        lasts_s = self.rng.uniform(*fault.lasts_s)
        takeover_s = -1.0
        while time.monotonic() - began < lasts_s:
            await asyncio.sleep(_POLL_S)
        if fault.end is not None:
            await fault.end(self, self.rng)
        until_s = self._now()
        if fault.leads:
            takeover_s = await self._takeover(leader, began)
        waited_s = self._now() - until_s
        well_s = await self._well(_GIVE_UP_S)
        waited = max(self.stack.waited_s() - stalled, 0.0)
        stall_s = max(waited, self.host.late_s - late)
        outcome = Outcome(
            fault.name, fault.lines, self.hit, at_s, until_s,
            -1.0 if well_s < 0 else well_s + waited_s, fault.limit_s, stall_s, takeover_s,
        )  # fmt: skip
        await self._check(fault, outcome, began, launched, said, spare)
        return outcome

    async def _takeover(self, leader: str, began: float) -> float:
        """Seconds from `began` until a controller other than `leader` leads; -1 if none does."""
        since = self.stack.leads_since.get(leader, (0, 0.0))[0]
        while time.monotonic() - began < _GIVE_UP_S:
            for name, (token, at_s) in self.stack.leads_since.items():
                if token > since and name != leader:
                    return at_s - began
            await asyncio.sleep(0.05)
        return -1.0

    # -- health of the stack ----------------------------------------------------------------

    async def _well(self, limit_s: float) -> float:
        """Seconds until the stack is healthy and stays healthy for `_STEADY_S`.

        -1 if that takes longer than `limit_s` and the stall of the host. The steady period reveals
        delayed effects of a fault.
        """
        began = ill = time.monotonic()
        stalled = self.stack.waited_s()
        while ill - began < limit_s + self.stack.waited_s() - stalled:
            self._why = await self._ill()
            if self._why:
                ill = time.monotonic()
            elif time.monotonic() - ill >= _STEADY_S:
                return ill - began
            await asyncio.sleep(_POLL_S)
        return -1.0

    async def _ill(self) -> str:
        """Describe an unhealthy part of the stack; "" if all parts are healthy."""
        seen = [await self._metrics(name) for name in CONTROLLERS]
        leading = [m for m in seen if m.get("shoal_leader") == 1.0]
        if len(leading) != 1:
            return f"{len(leading)} controllers lead"
        if not all(seen):
            return "a controller does not answer"
        age_s = leading[0].get("shoal_tick_age_seconds", 99.0)
        if age_s > 3.0:
            return f"the last decision is {age_s:.0f} s old"
        for model in MODELS:
            age_s = leading[0].get(f'shoal_telemetry_age_seconds{{model="{model}"}}', 99.0)
            if age_s > 4.0:
                return f"telemetry of {model} is {age_s:.0f} s old"
        return self._fleet_ill() or self._load_ill()

    def _fleet_ill(self) -> str:
        now_s = time.monotonic()
        ready: dict[str, int] = dict.fromkeys(MODELS, 0)
        for node, wanted in self.topics.assignments.items():
            status = self.topics.statuses.get(node)
            if not wanted.instances:
                continue
            if status is None or now_s - self.topics.heard[node] > 6.0:
                return f"no word from {node}"
            if status.observed_generation != wanted.generation:
                return f"{node} has not taken up generation {wanted.generation}"
            states = {seen.instance: seen.state for seen in status.instances}
            for one in wanted.instances:
                if not one.drain and states.get(one.instance) is not InstanceState.READY:
                    return f"{one.instance} is not ready"
                ready[one.model] += not one.drain
        short = [model for model, count in ready.items() if count < _FLOOR]
        return f"{short[0]} is below its floor" if short else ""

    def _assigned_instances(self) -> Counter[str]:
        return Counter(
            one.model
            for wanted in self.topics.assignments.values()
            for one in wanted.instances
            if not one.drain
        )

    def _load_ill(self) -> str:
        if self.load.ended:
            return f"the load ended; see {self.load.log}"
        since_s = time.monotonic() - 3.0
        recent = [r for r in self.requests[-200:] if r.sent_s + r.took_s > since_s]
        for name in GATEWAYS:
            own = [r for r in recent if r.gateway == name]
            if not own:
                return f"no answer of {name}"
            if own[-1].why:
                return f"{name}: {own[-1].status} {own[-1].why}"
        return ""

    async def _metrics(self, name: str) -> dict[str, float]:
        """Metrics of a controller by name and labels; {} if it does not answer."""
        url = f"http://127.0.0.1:{self.stack.ports[name]}/metrics"
        found: dict[str, float] = {}
        try:
            async with (
                ClientSession(timeout=ClientTimeout(total=2.0)) as session,
                session.get(url) as answer,
            ):
                text = await answer.text()
        except (ClientError, OSError, TimeoutError):
            return found
        for one in text.splitlines():
            with contextlib.suppress(ValueError):
                key, value = one.rsplit(" ", 1)
                found[key] = float(value)
        return found

    # -- promises after a fault --------------------------------------------------------------

    async def _check(
        self, fault: Fault, outcome: Outcome, began: float,
        launched: dict[str, set[int]], said: int, spare: set[str],
    ) -> None:  # fmt: skip
        broken, stall_s = outcome.broken, outcome.stall_s
        if outcome.well_s < 0:
            broken.append(f"not well after {_GIVE_UP_S:.0f} s: {self._why}")
        elif outcome.well_s > fault.limit_s + stall_s:
            broken.append(f"well after {outcome.well_s:.1f} s; {fault.limit_s:.0f} s are promised")
        if fault.leads and not 0 <= outcome.takeover_s <= 10.0 + stall_s:
            broken.append(f"takeover after {outcome.takeover_s:.1f} s; 10 s are promised")
        self._requests(fault, outcome, began)
        fresh = {
            name for name, times in self.topics.launches.items() if name not in launched
        }  # fmt: skip
        again = {
            name for name, times in self.topics.launches.items()
            if name in launched and len(times) > len(launched[name])
        }  # fmt: skip
        outcome.started = len(fresh)
        # Instances that an earlier fault made surplus may be removed during this fault.
        moved = [
            d
            for _, d in self.topics.decisions[said:]
            if d.applied and d.change and not (d.kind == "scale_in" and d.model in spare)
        ]
        if fault.quiet and (fresh or moved):
            why = moved[0].reason if moved else "without a reason"
            broken.append(f"the fleet was changed without need ({len(moved)} decisions: {why})")
        if fault.quiet and again and "clock" not in fault.name:
            broken.append(f"{', '.join(sorted(again))} was started again")
        twice = [number for number, count in self.topics.numbers.items() if count > 1]
        if twice and not self.embedded:
            broken.append(f"decisions {twice[:3]} were written twice")
            self.topics.numbers.clear()
        self._gpus(broken)
        await self._special(fault, outcome)

    def _requests(self, fault: Fault, outcome: Outcome, began: float) -> None:
        """Check that requests succeed, except requests that this fault may fail."""
        failed = self.load.failed(began - _SERVES_S, time.monotonic())
        failed = [r for r in failed if r.sent_s + r.took_s >= began]
        outcome.failed = len(failed)
        if fault.loses.startswith("what that gateway"):
            failed = [r for r in failed if r.gateway != self.hit]
        elif fault.loses:
            failed = [r for r in failed if r.sent_s > began + 1.0]
        if failed:
            first = failed[0]
            outcome.broken.append(
                f"{len(failed)} requests failed ({first.gateway}: {first.status} {first.why})"
            )

    def _gpus(self, broken: list[str]) -> None:
        for node, status in self.topics.statuses.items():
            used = [
                gpu
                for seen in status.instances
                if seen.state in (InstanceState.READY, InstanceState.DRAINING) and seen.endpoint
                for gpu in seen.gpus
            ]
            if len(used) != len(set(used)):
                broken.append(f"{node}: two instances on a GPU")

    async def _special(self, fault: Fault, outcome: Outcome) -> None:
        broken = outcome.broken
        if fault.leads:
            # A lost or doubled count stays in the window for a minute. A record that only one of
            # the two readers has read is a brief difference, so measure again.
            for _ in range(_LOOKS):
                outcome.rate_off = await self._rate_off()
                if outcome.rate_off <= _OFF:
                    break
            if outcome.rate_off > _OFF:
                broken.append(f"window rates are {outcome.rate_off:.1%} off an oracle")
        expected = self.poison
        if expected:
            until = time.monotonic() + 5.0 + outcome.stall_s
            while True:
                places = [(one.topic, one.partition, one.offset) for one in self.topics.letters]
                counts = [places.count(place) for place in expected]
                if set(counts) == {1} or time.monotonic() > until:
                    break
                await asyncio.sleep(_POLL_S)
            wrong = sorted(place for place in expected if places.count(place) != 1)
            if wrong:
                of = f"{len(wrong)} of {len(expected)} bad records"
                broken.append(
                    f"{of} without one dead letter: {wrong[0]} has {places.count(wrong[0])}"
                )
            self.poison = set()
        until = time.monotonic() + _OVERWRITTEN_S + outcome.stall_s
        while len(tokens := self._tokens()) > 1 and time.monotonic() < until:
            await asyncio.sleep(_POLL_S)
        if len(tokens) > 1:
            broken.append(f"the last assignments and routes have leader tokens {sorted(tokens)}")
        broken += self.complaints
        self.complaints.clear()

    def _tokens(self) -> set[int]:
        """Leader tokens of the last assignments and routes."""
        tokens = {a.leader_token for a in self.topics.assignments.values()}
        return tokens | {r.leader_token for r in self.topics.routes.values()}

    async def _rate_off(self) -> float:
        """Relative deviation of the leader's windows from a count of every telemetry record.

        The reference is the window of a reader that never failed. The newest second of a window is
        incomplete, and the time of a scraped tick is not known to the second. So each scrape is
        compared with the nearest reference window, and the median of a few scrapes is returned. A
        lost or doubled record affects most scrapes, so the median shows it.
        """
        await asyncio.sleep(2.0)
        scrapes: list[dict[str, float]] = []
        since_s = self.stack.base.now_ms(time.monotonic_ns()) // 1000
        for _ in range(_SCRAPES):
            seen = [await self._metrics(name) for name in CONTROLLERS]
            scrapes += [m for m in seen if m.get("shoal_leader") == 1.0]
            await asyncio.sleep(_POLL_S)
        until_s = self.stack.base.now_ms(time.monotonic_ns()) // 1000
        await asyncio.sleep(3.0)
        worst = 0.0
        for model in MODELS:
            name = f'shoal_demand_requests_per_second{{model="{model}"}}'
            rates = [m[name] for m in scrapes if name in m] or [-1.0]
            oracles = [self._oracle(model, end_s) for end_s in range(since_s - 2, until_s + 2)]
            off = [min(abs(rate - o) / max(o, 1e-9) for o in oracles) for rate in rates]
            worst = max(worst, median(off))
        return worst

    def _oracle(self, model: str, end_s: int) -> float:
        stats = self.topics.windows.stats(model, 1000 * end_s, _WINDOW_S)
        return stats.req_per_s if isinstance(stats, Stats) else 0.0


def line(outcome: Outcome, number: int, left_s: float) -> str:
    """Format one line of the table on the terminal."""
    verdict = "BROKEN" if outcome.broken else "held"
    well = f"{outcome.well_s:5.1f}" if outcome.well_s >= 0 else "never"
    more = f" takeover {outcome.takeover_s:.1f} s" if outcome.takeover_s >= 0 else ""
    more += f" rates {outcome.rate_off:.2%} off" if outcome.rate_off >= 0 else ""
    text = (
        f"{number:3d} {outcome.at_s:6.0f} s  {outcome.fault:<31} "
        f"{outcome.until_s - outcome.at_s:5.1f} s  well {well} s (stall {outcome.stall_s:4.1f})  "
        f"{outcome.failed:3d} failed  {verdict}{more}"
    )
    return "\n".join([text, *(f"      {one}" for one in outcome.broken)])
