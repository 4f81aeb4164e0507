"""The texts on the screen: the state of a run, its events, and the gaps of the trace.

This module also decides when to draw the screen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from autoscaler.explain.quantity_texts import rate
from streams.files.model_source import facts_words, uncertain_facts
from streams.plain_text import several
from streams.tools.up import process_list
from streams.tools.up.child_processes import Children
from streams.tools.up.event_log import Event, clock
from streams.tools.up.live_view import View
from streams.tools.up.run_options import Wishes
from streams.tools.up.run_state import Picture
from streams.tools.up.screen_layout import Facts
from streams.tools.up.trace_facts import Gap
from topics.time_base import TimeBase

_REDRAW_S = 0.25


class Shown:
    """The screen of one run. state: its current activity. progress: the replayer's progress.

    title: the run's title, once the run serves. console_url: address of the console, "" = off.
    trace_began_ms: domain time at which trace time 0 is replayed; 0 before the replay. silent:
    whether gaps of the trace are hidden.
    """

    def __init__(self, wishes: Wishes, view: View, picture: Picture, children: Children) -> None:
        self._wishes = wishes
        self._view = view
        self._picture = picture
        self._children = children
        self._visible = False
        self._told_gaps = 0
        self.time_base = TimeBase(wishes.speed, 0, 0)
        self.title: tuple[str, ...] = ()
        self.state = "starting"
        self.progress: Mapping[str, Any] = {}
        self.trace_began_ms = 0
        self.console_url = ""
        self.silent = False
        self._stopped_ms = 0

    def begin(self) -> None:
        """Start to draw the view on the terminal."""
        self._view.start()
        self._visible = True
        self._tell_workloads()

    def stop(self) -> int:
        """End the clock and the cost of the view, because the run is over. Returns domain time in
        ms.
        """
        self._stopped_ms = self.now_ms()
        self.stand("stopping...")
        return self._stopped_ms

    def end(self) -> None:
        """Draw the final state."""
        self.stand("ended")
        self._view.stop()

    def stand(self, state: str) -> None:
        """Change the shown state, and draw."""
        self.state = state
        self.show()

    def now_ms(self) -> int:
        """Domain time in ms, at most the time at which the run ended."""
        return self._stopped_ms or self.time_base.now_ms(time.monotonic_ns())

    def say(self, text: str, bad: bool = False) -> None:
        """Add an event to the log."""
        self._picture.story.add([Event(self.now_ms(), text, bad)])
        self.show()

    async def draw(self) -> None:
        """Draw repeatedly until cancelled."""
        while True:
            self._tell_gaps()
            self.show()
            await asyncio.sleep(_REDRAW_S)

    def last_counts(self) -> dict[str, int]:
        """The replayer's last counts: requests sent, served and failed; {} before the first."""
        counts = {key: int(self.progress.get(key, 0)) for key in ("sent", "served", "failed")}
        return counts if counts["sent"] else {}

    def show(self) -> None:
        """Draw the current state, if drawing has begun."""
        if not self._visible:
            return
        now_ms = self.now_ms()
        late = self.progress.get("late_p99_ms")
        down, lost = ", ".join(self._children.down()), ", ".join(self._children.lost)
        alerts = [f"! down: {down}; starting again"] if down else []
        alerts += [f"! lost: {lost}; instances go on as they are"] if lost else []
        behind = self._picture.behind()
        alerts += [f"! {behind}"] if behind else []
        gap = None if self.silent else self._gap(now_ms)
        quiet = f"no requests in the trace until {self._clock_of(gap.end_s)} | " if gap else ""
        facts = Facts(
            title=self.title,
            state=quiet + self.state,
            alerts=tuple(alerts),
            began_ms=self.time_base.origin_ms,
            sent=int(self.progress.get("sent", 0)),
            served=int(self.progress.get("served", 0)),
            failed=int(self.progress.get("failed", 0)),
            usd=self._picture.usd(),
            late_p99_ms=None if late is None else float(late),
        )
        self._view.update(self._picture, now_ms, facts)

    def trace_s(self) -> float:
        """The current second of the trace; -1 before the replay."""
        return self._trace_s(self.now_ms())

    def _trace_s(self, now_ms: int) -> float:
        return (now_ms - self.trace_began_ms) / 1000.0 if self.trace_began_ms else -1.0

    def _gap(self, now_ms: int) -> Gap | None:
        """The current gap of the trace, if there is one."""
        at_s = self._trace_s(now_ms)
        return next((g for g in self._wishes.traffic.gaps if g.start_s <= at_s < g.end_s), None)

    def _tell_workloads(self) -> None:
        """Add events for models with facts of another catalogue entry or with a rate from the
        trace.
        """
        if self._wishes.traffic.read_as:
            self.say(f"{self._wishes.trace.name} is read as {self._wishes.traffic.read_as}")
        name, about = self._wishes.scenario
        if about:
            self.say(f"scenario {name}: {about}")
        for model, name, entry in uncertain_facts(self._wishes.config.cluster):
            self.say(f"{model}: {facts_words(name, entry)}")
        for model, demand in self._wishes.demands.items():
            lengths = demand.lengths
            self.say(
                f"{model} declares no rate: planned for the start of the trace, "
                f"{rate(demand.req_per_s)} req/s of {lengths.input_tokens:.0f} tokens in "
                f"and {lengths.output_tokens:.0f} out"
            )

    def _tell_gaps(self) -> None:
        gap = self._gap(self.now_ms())
        if gap is not None and self._wishes.traffic.gaps.index(gap) >= self._told_gaps:
            self._told_gaps = self._wishes.traffic.gaps.index(gap) + 1
            until = self._clock_of(gap.end_s)
            self.say(f"the trace has no requests until {until} (a gap in the record)")

    def _clock_of(self, trace_s: float) -> str:
        """A time of the trace as domain time since the start of the run."""
        return clock(self.trace_began_ms + trace_s * 1000.0 - self.time_base.origin_ms)

    def serves(self, port: int, ready_s: float) -> None:
        """Set title and state when the load begins."""
        cluster = self._wishes.config.cluster
        regions = len({pool.region for pool in cluster.pools})
        nodes = cluster.max_total_nodes
        kind = "real node" if self._wishes.real else "simulated node"
        title = (
            f"shoal: {self._wishes.trace.name} at {self._wishes.speed:g}x | "
            f"{several(len(cluster.services), 'model')}, "
            f"{several(regions, 'region')}, {several(nodes, kind)}"
        )
        api = f"API http://{process_list.HOST}:{port}/v1"
        self.title = (title,)
        console = f"console {self.console_url} | " if self.console_url else ""
        self.state = f"{console}{api} | ready in {ready_s:.0f} s | Ctrl-C stops everything"
