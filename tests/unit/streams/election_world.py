"""Controllers that elect a leader over one log in memory, in steps of virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

from streams.loop.election import RENEW_S, TAKEOVER_S, Election
from topics.leadership import Leadership

STEP_S = 0.1
"""Seconds of one step."""


@dataclass
class World:
    """An in-memory log, controllers that read it at each step, and executors.

    Executors follow the highest token, and readers of the log learn that token. The log can be
    deleted and created again.
    """

    log: list[Leadership] = field(default_factory=list)
    taken_s: list[float] = field(default_factory=list)
    controllers: dict[str, Controller] = field(default_factory=dict)
    now_s: float = 100.0
    visible: int = 0
    age_s: float = 0.0
    followed: int = 0

    def start(self, name: str) -> Controller:
        self.controllers[name] = Controller(name, self)
        return self.controllers[name]

    def delete(self) -> None:
        """Delete the topic and create it again.

        A reader whose offset is beyond the end of the new topic starts from its beginning; other
        readers continue at their offset.
        """
        self.log.clear()
        self.taken_s.clear()

    def run(self, for_s: float) -> None:
        for _ in range(round(for_s / STEP_S)):
            self.now_s += STEP_S
            for controller in self.controllers.values():
                controller.arrive()
            self.visible = len(self.log)  # Records of one step are sent concurrently.
            for controller in self.controllers.values():
                if controller.running:
                    controller.step()
            leading = [c for c in self.controllers.values() if c.leads()]
            names = [controller.name for controller in leading]
            assert len(leading) <= 1, f"two lead at {self.now_s}: {names}"
            for controller in leading:
                if controller.connected:  # its assignments arrive, and a lower token is refused
                    self.followed = max(self.followed, controller.election.token)

    def leader(self) -> str:
        return next((c.name for c in self.controllers.values() if c.leads()), "")


class Controller:
    """A controller with `Election` on an in-memory log instead of a broker."""

    def __init__(self, name: str, world: World) -> None:
        self.name, self.world = name, world
        self.election = Election(f"boot-{name}-{world.now_s}")
        self.running, self.connected, self.read, self.slow_s = True, True, 0, 0.0
        self.sending: list[tuple[float, Leadership]] = []
        self._said_s = self._claimed_s = float("-inf")

    def leads(self) -> bool:
        return self.running and self.election.leads(self.world.now_s)

    def step(self) -> None:
        now_s = self.world.now_s
        if self.connected:
            if self.read > self.world.visible:
                self.read = 0
            self.election.followed(self.world.followed)
            while self.read < self.world.visible:
                if self.world.taken_s[self.read] + self.slow_s / 2 > now_s:
                    break
                self.election.apply(self.world.log[self.read], self.read, self.world.age_s)
                self.read += 1
        self.election.watch(now_s)
        if self.sending or self.election.claiming(now_s):
            return
        if self.election.may_claim(now_s) and now_s - self._claimed_s >= TAKEOVER_S:
            self._claimed_s = now_s
            self._say("claim")
        elif now_s - self._said_s >= RENEW_S or self.election.yielded:
            self._say("renewal" if self.election.token else "standby")

    def _say(self, kind: str) -> None:
        now_s = self._said_s = self.world.now_s
        self.election.yielded = False
        at_ms = round(now_s * 1000)
        self.election.sent(kind, at_ms, now_s)
        token = self.election.token if kind == "renewal" else 0
        base = self.election.next_base() if kind == "claim" else 0
        record = Leadership(self.name, self.election.boot, kind, at_ms, base, token)
        self.sending.append((now_s + self.slow_s, record))
        self.arrive()

    def arrive(self) -> None:
        """Append the sent records to the topic after their delay."""
        while self.sending and self.sending[0][0] <= self.world.now_s:
            _, record = self.sending.pop(0)
            if self.connected:
                self.world.log.append(record)
                self.world.taken_s.append(self.world.now_s)
