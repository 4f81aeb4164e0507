"""Faults: the effect of each, its duration, its permitted losses, and its limit for recovery.

A new fault is one entry in `FAULTS`. Limits are in real seconds. The measured stall of the host is
added to each limit, because a process without CPU time cannot keep a promise.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import ClientSession

from loadtests.chaos.fault import Act, Fault
from loadtests.chaos.stack import CONTROLLERS, EXECUTORS, GATEWAYS, MODELS, Raw, shifted
from loadtests.chaos.upkeep import delete_topic, rotate_keys
from loadtests.extreme import Names, unbelievable
from topics.codec import encode
from topics.controls import Control
from topics.edge.kafka_clients import admin
from topics.fleet import InstanceState
from topics.records import Assignment, Price, Routes
from topics.topic_table import (
    ASSIGNMENTS,
    CONTROLS,
    LEADERSHIP,
    PRICES,
    ROUTES,
    TABLE,
    key_of,
)

if TYPE_CHECKING:
    from loadtests.chaos.run import Chaos


def _controller(leads: bool) -> Callable[[Chaos], str]:
    def chosen(chaos: Chaos) -> str:
        leader = chaos.stack.leader()
        return leader if leads else next(name for name in CONTROLLERS if name != leader)

    return chosen


def _signal(part: Callable[[Chaos], str], what: signal.Signals) -> Act:
    async def act(chaos: Chaos, rng: random.Random) -> None:
        chaos.hit = part(chaos)
        chaos.stack.signal(chaos.hit, what)

    return act


def _one_of(names: tuple[str, ...]) -> Callable[[Chaos], str]:
    return lambda chaos: chaos.rng.choice(names)


async def _resume(chaos: Chaos, rng: random.Random) -> None:
    chaos.stack.signal(chaos.hit, signal.SIGCONT)


def _cut(part: Callable[[Chaos], str]) -> Act:
    async def act(chaos: Chaos, rng: random.Random) -> None:
        chaos.hit = part(chaos)
        chaos.stack.relays[chaos.hit].cut()

    return act


async def _heal(chaos: Chaos, rng: random.Random) -> None:
    for relay in chaos.stack.relays.values():
        relay.heal()


async def _cut_all(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = "broker"
    for relay in chaos.stack.relays.values():
        relay.cut()


def _broker(what: signal.Signals) -> Act:
    async def act(chaos: Chaos, rng: random.Random) -> None:
        chaos.hit = "broker"
        os.kill(broker_on(chaos.stack.bootstrap), what)

    return act


def broker_on(address: str) -> int:
    """Process id of the Kafka of `make kafka` that listens on `address`; 0 if there is none."""
    port = address.rpartition(":")[2]
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if b"kafka.Kafka" in words:
                properties = Path(words[words.index(b"kafka.Kafka") + 1].decode()).read_text()
                if f"\nlisteners=PLAINTEXT://127.0.0.1:{port}," in properties:
                    return int(entry.name)
    return 0


async def _slow_all(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = "broker"
    for relay in chaos.stack.relays.values():
        relay.slow_s = 0.2


async def _stop_controllers(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = "controllers"
    for name in CONTROLLERS:
        chaos.stack.signal(name, signal.SIGSTOP)


async def _resume_controllers(chaos: Chaos, rng: random.Random) -> None:
    for name in CONTROLLERS:
        chaos.stack.signal(name, signal.SIGCONT)


def _engine(what: signal.Signals) -> Act:
    async def act(chaos: Chaos, rng: random.Random) -> None:
        ready = sorted(
            seen.endpoint
            for status in chaos.topics.statuses.values()
            for seen in status.instances
            if seen.state is InstanceState.READY and seen.endpoint
        )
        port = rng.choice(ready).rpartition(":")[2]
        chaos.engine_pid = engine_on(port)
        chaos.hit = f"engine on port {port}"
        if chaos.engine_pid:
            os.kill(chaos.engine_pid, what)

    return act


async def _resume_engine(chaos: Chaos, rng: random.Random) -> None:
    if chaos.engine_pid:
        os.kill(chaos.engine_pid, signal.SIGCONT)


def engine_on(port: str) -> int:
    """Process id of this run's engine that listens on `port`; 0 if there is none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"--port={port}".encode() in words and _is_ours(int(entry.name)):
                return int(entry.name)
    return 0


def _is_ours(pid: int) -> bool:
    """Whether process `pid` descends from this process, because the machine may
    run other stacks.
    """
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            return False
        if pid == os.getpid():
            return True
    return False


def _wrong_clock(chaos: Chaos, by_s: float) -> None:
    """Restart an executor with a clock that is `by_s` ahead. Executors read the clock only at the
    start."""
    path = chaos.stack.folder / f"{chaos.hit}.json"
    base = shifted(chaos.stack.base, by_s)
    text = path.read_text()
    for old in chaos.bases:
        text = text.replace(old, base.format())
    path.write_text(text)
    chaos.bases.add(base.format())
    chaos.stack.signal(chaos.hit, signal.SIGKILL)


async def _clock(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = rng.choice(EXECUTORS)
    _wrong_clock(chaos, rng.choice((300.0, -300.0, 3600.0, -90.0)))


async def _right_clock(chaos: Chaos, rng: random.Random) -> None:
    _wrong_clock(chaos, 0.0)


async def _poison(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = "every topic"
    prefix = chaos.stack.prefix
    records = [
        (topic.wire_name(prefix), b"poison", value)
        for topic in TABLE
        if topic.name not in ("dead-letters", "demand")
        for value in (b"\xff\x00 not JSON", b'{"schema_version":99}')
    ]
    for taken in await chaos.stack.write(records):
        chaos.poison.add((taken.topic.removeprefix(prefix), taken.partition, taken.offset))


async def _extreme(chaos: Chaos, rng: random.Random) -> None:
    """Write valid records with values at their bounds. No reader may act on them."""
    chaos.hit = "every topic"
    prefix, cluster = chaos.stack.prefix, chaos.stack.config.cluster
    idle = [node for node, status in sorted(chaos.topics.statuses.items()) if not status.instances]
    names = Names(
        chaos.stack.base.now_ms(time.monotonic_ns()),
        tuple(service.model for service in cluster.services),
        tuple(idle[-1:]) or ("nowhere",),
        tuple(pool.id for pool in cluster.pools),
    )
    made = unbelievable(names)
    await chaos.stack.write([(f"{prefix}{topic}", key, value) for topic, key, value in made])


async def _foreign(chaos: Chaos, rng: random.Random) -> None:
    """Write empty assignments and routes with the tokens of a former, the present and an unknown
    leader.
    """
    chaos.hit = "assignments and routes"
    prefix = chaos.stack.prefix
    records: list[Raw] = []
    desired: list[Assignment | Routes] = [*chaos.topics.assignments.values()]
    desired += chaos.topics.routes.values()
    for found in desired:
        topic = (ASSIGNMENTS if isinstance(found, Assignment) else ROUTES).wire_name(prefix)
        for token in (max(0, found.leader_token - 1), found.leader_token, 10**6):
            empty: Assignment | Routes
            if isinstance(found, Assignment):
                empty = replace(found, instances=(), leader_token=token, generation=10**6)
            else:
                empty = replace(found, groups=(), leader_token=token, generation=10**6)
            records.append((topic, key_of(found), encode(empty)))
    await chaos.stack.write(records)


async def _prices(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = "price feed"
    prefix = chaos.stack.prefix
    now_ms = chaos.stack.base.now_ms(time.monotonic_ns())
    records: list[Raw] = []
    for pool in chaos.stack.config.cluster.pools:
        for text in (b"NaN", b"1e999", b"-3", b'"cheap"'):
            value = b'{"schema_version":1,"pool":"%s","usd_per_node_h":%s,"observed_ms":%d}' % (
                pool.id.encode(), text, now_ms,
            )  # fmt: skip
            records.append((PRICES.wire_name(prefix), pool.id.encode(), value))
        jump = Price(pool.id, 1000.0 * pool.price_usd_per_h, now_ms)
        records.append((PRICES.wire_name(prefix), pool.id.encode(), encode(jump)))
    for number, taken in enumerate(await chaos.stack.write(records)):
        if number % 5 != 4:  # Every fifth record is valid.
            chaos.poison.add((PRICES.name, taken.partition, taken.offset))


async def _alerts(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = "webhook"
    url = f"http://127.0.0.1:{chaos.stack.ports[chaos.stack.leader()]}/alerts"
    alert = {
        "status": "firing",
        "labels": {"alertname": "Slow", "model": MODELS[0]},
        "startsAt": "2026-01-01T00:00:00Z",
    }
    async with ClientSession() as session:
        for number in range(60):
            state = "resolved" if number % 3 == 2 else "firing"
            body = {"alerts": [{**alert, "status": state, "fingerprint": f"f{number % 5}"}]}
            headers = {"Authorization": f"Bearer {chaos.stack.token}"}
            async with session.post(url, json=body, headers=headers) as answer:
                if answer.status not in (200, 429):
                    chaos.complaints.append(f"the webhook answered {answer.status}")


def _pause(active: bool) -> Act:
    async def act(chaos: Chaos, rng: random.Random) -> None:
        chaos.hit = "operator"
        now_ms = chaos.stack.base.now_ms(time.monotonic_ns())
        said = Control("*", "pause", active, "chaos", "a test", now_ms)
        await chaos.stack.write(
            [(CONTROLS.wire_name(chaos.stack.prefix), said.key.encode(), encode(said))]
        )

    return act


async def _delete(chaos: Chaos, rng: random.Random) -> None:
    chaos.hit = LEADERSHIP.name
    client = admin(chaos.stack.bootstrap, "chaos")
    await client.start()
    try:
        await client.delete_topics([LEADERSHIP.wire_name(chaos.stack.prefix)])
    finally:
        await client.close()


_LEADER, _STANDBY = _controller(True), _controller(False)
_EXECUTOR, _GATEWAY = _one_of(EXECUTORS), _one_of(GATEWAYS)
_KILL, _STOP = signal.SIGKILL, signal.SIGSTOP
_ITS_OWN = "what that gateway held, until it is back"

FAULTS: tuple[Fault, ...] = (
    Fault("leader killed", "11, 13", _signal(_LEADER, _KILL), leads=True),
    Fault("leader stopped", "10, 11", _signal(_LEADER, _STOP), _resume, (12.0, 30.0), leads=True),
    Fault("leader cut off", "10, 11", _cut(_LEADER), _heal, (12.0, 30.0), leads=True),
    Fault("standby killed", "11", _signal(_STANDBY, _KILL)),
    Fault("controllers gone", "24", _stop_controllers, _resume_controllers, (20.0, 45.0)),
    Fault("broker away", "12", _cut_all, _heal, (30.0, 60.0), 15.0),
    Fault("broker killed", "12", _broker(_KILL), limit_s=30.0, killable=True),
    Fault(
        "broker stopped",
        "12",
        _broker(_STOP),
        _broker(signal.SIGCONT),
        (20.0, 45.0),
        20.0,
        killable=True,
    ),
    Fault("broker slow", "12", _slow_all, _heal, (10.0, 30.0)),
    Fault("executor killed", "19", _signal(_EXECUTOR, _KILL)),
    Fault("executor stopped", "17", _signal(_EXECUTOR, _STOP), _resume, (5.0, 9.0)),
    Fault("region cut off", "also promised", _cut(_EXECUTOR), _heal, (20.0, 40.0), 20.0),
    Fault("executor's clock wrong", "17", _clock, _right_clock, (10.0, 20.0)),
    Fault("gateway killed", "8", _signal(_GATEWAY, _KILL), limit_s=15.0, loses=_ITS_OWN),
    Fault("gateway cut off", "1", _cut(_GATEWAY), _heal, (15.0, 30.0)),
    Fault("engine killed", "21", _engine(_KILL), limit_s=30.0, loses="what it held", quiet=False),
    Fault("engine stopped", "21", _engine(_STOP), _resume_engine, (3.0, 6.0), quiet=False),
    Fault("poison on every topic", "14", _poison),
    Fault("extreme record on every topic", "28", _extreme),
    Fault("foreign assignments and routes", "9, 10", _foreign),
    Fault("absurd prices", "15", _prices),
    Fault("alert storm", "23", _alerts),
    Fault("pause", "25", _pause(True), _pause(False), (8.0, 12.0)),
    Fault("leadership deleted", "11", _delete, limit_s=30.0, real=True),
    Fault("topic deleted", "also promised", delete_topic, limit_s=30.0, real=True),
    Fault("keys rotated", "also promised", rotate_keys, limit_s=30.0),
)


def order(
    rng: random.Random, embedded: bool, only: str = "", *, killable: bool = False
) -> list[Fault]:
    """All applicable faults in random order, each once."""
    faults = [fault for fault in FAULTS if not (fault.real and embedded)]
    faults = [fault for fault in faults if killable or not fault.killable]
    faults = [fault for fault in faults if only in ("", fault.name)]
    rng.shuffle(faults)
    return faults
