"""Generated records at the limits of the codec, on every topic.

Some fields of a plain record, at any depth, get values at their bounds, or values that contradict
other fields. Most of these records are valid. The others test readers with malformed records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from autoscaler.domain.workload import Lengths
from autoscaler.estimate.forecast.history import HOUR_MS
from autoscaler.state.ledger import ArrivalsHour, ModelMemory, write_part
from autoscaler.state.model_state import DemandEstimate, ModelState, Target
from topics import records
from topics.checks import MAX_COUNT, MAX_MS, InvalidValue
from topics.codec import CELLS, decode, encode
from topics.demand import DemandSecond, GatewayState
from topics.instance_ranks import GangRank, GangStage
from topics.scoring import ScoreSplit
from topics.sketch import HIGHEST, LOWEST, MOST_COUNT, sketches_to_text
from topics.telemetry import COUNTS, LONGEST_SPAN_MS, MOST_IN_FLIGHT, MOST_PER_S
from topics.topic_table import LEDGER, TABLE, key_of, topic_of

Pick = Callable[[Sequence[Any]], Any]
"""A function that draws one of several values with equal probability."""

_INTS = (
    -1, 0, 1, 2, 7, 59, 60, 63, 64, 999, 1000, 1001, 10**6, 10**7, 10**9, 10**9 + 1, 10**11,
    MAX_COUNT - 1, MAX_COUNT, 2**53, 2**63 - 1, MAX_MS // 1000, MAX_MS - 1, MAX_MS, LONGEST_SPAN_MS,
    MOST_IN_FLIGHT, *MOST_PER_S,
)  # fmt: skip
_FLOATS = (-1e9, -1.0, -0.0, 0.0, 1e-300, 1e-9, 0.009, 0.01, 0.5, 1.0, 1.5, 1e5, 1e6, 1e9, 1e308)
_SHIFTS_MS = (-HOUR_MS, -60_000, -1500, -1, 0, 1, 999, 1001, 60_000, HOUR_MS, 365 * 24 * HOUR_MS)
_MOST_REPEATED = 300


@dataclass(frozen=True, slots=True)
class Names:
    """Names for generated records: declared names, and names of running instances. now_ms: domain
    time.
    """

    now_ms: int
    models: tuple[str, ...] = ("chat",)
    nodes: tuple[str, ...] = ("us.l4.on-demand.0",)
    pools: tuple[str, ...] = ("us/l4/on-demand",)
    groups: tuple[str, ...] = ("chat:a1@us/l4/on-demand:1",)
    instances: tuple[str, ...] = ("chat-1-a0",)
    gateways: tuple[str, ...] = ("g1",)
    declared: Mapping[str, str] = field(default_factory=dict)
    token: int = 1
    ledger: tuple[records.LedgerEntry, ...] = ()

    def strange(self) -> tuple[str, ...]:
        """Names of every kind. Each may replace any other name in a record."""
        known = (*self.models, *self.nodes, *self.pools, *self.groups, *self.instances)
        serials = ("0", "007", "9" * 12, "9" * 150, str(MAX_COUNT), "x")
        combos = [group.rpartition(":")[0] for group in self.groups[:3]]
        odd = tuple(f"{combo}:{serial}" for combo in combos for serial in serials)
        rest = ("x", "*", "", "n" * 200, "n" * 201, ":", ":1", "a:1", "x@y", "+", "a+b", "1")
        return (*known, *odd, *rest, *self.gateways)


def extreme(pick: Pick, names: Names, topic: str = "") -> tuple[str, bytes | None, bytes]:
    """Return (topic, key, record) of one extreme record. topic: "" draws a topic at random."""
    topic = topic or pick([one.name for one in TABLE])
    record = plain(pick, names, topic)
    value = orjson.loads(encode(record))
    part = orjson.loads(record.value) if topic == LEDGER.name else None
    for _ in range(pick((0, 1, 1, 2, 3, 5))):
        _change(pick, names, part or value)
    if part:
        value["value"] = orjson.dumps(part).decode()
    made = orjson.dumps(value)
    try:
        return topic, key_of(decode(topic, made)), made
    except InvalidValue:
        return topic, key_of(record), made


def _change(pick: Pick, names: Names, value: dict[str, Any]) -> None:
    """Set one field, at any depth, to another value of its kind."""
    holder: Any = value
    while True:
        places = [*holder] if isinstance(holder, dict) else [*range(len(holder))]
        place = pick(places)
        inside = holder[place]
        deeper = isinstance(inside, (dict, list)) and len(inside) > 0
        if deeper and pick((True, True, True, False)):
            holder = inside
            continue
        if place != "schema_version":
            holder[place] = _other(pick, names, inside, place)
        return


def _other(pick: Pick, names: Names, value: Any, place: object) -> Any:
    if place == CELLS:
        return _cells(pick)
    if place == "declared":
        return pick([*names.declared.values(), "", "{", "a: [", "a: &a [*a]"])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        times = [names.now_ms + shift for shift in _SHIFTS_MS]
        return pick(
            [*_INTS, *times, *[one // HOUR_MS for one in times], *[t // 1000 for t in times]]
        )
    if isinstance(value, float):
        return pick(_FLOATS)
    if isinstance(value, str):
        return pick((*names.strange(), *records.PHASES, *records.InstanceState, *_WORDS))
    if isinstance(value, list):
        return pick(([], value * 2, value * _MOST_REPEATED, [*reversed(value)]))
    if isinstance(value, dict):
        return dict(zip(names.strange(), _INTS, strict=False))
    return None


_WORDS = (
    *records.DECISION_KINDS, "claim", "renewal", "resignation", "standby", "pause", "release",
    "verdict", "firing", "resolved", "y" * 2000, "127.0.0.1:1",
)  # fmt: skip


def _cells(pick: Pick) -> str:
    counts = (0, 1, 7, 8463, MOST_COUNT // 100, MOST_COUNT)
    one = {pick((LOWEST, LOWEST + 1, 0, 1, 200, HIGHEST)): pick(counts) for _ in range(3)}
    full = dict.fromkeys(range(LOWEST, HIGHEST + 1), 1)
    return sketches_to_text(pick((one, {}, full)) for _ in range(6))


def plain(pick: Pick, names: Names, topic: str) -> Any:
    """Return a record of `topic` as a healthy fleet writes it."""
    return _PLAIN[topic](pick, names)


def _telemetry(pick: Pick, names: Names) -> records.Telemetry:
    counts = pick(((3,) * 8, (0,) * 8, MOST_PER_S[:8], (10**6,) * 8))
    return records.Telemetry(
        pick(names.models), pick(names.gateways), "boot", pick((1, 2, 3, 10**6, MAX_COUNT)),
        names.now_ms, 1000, 0, *counts, pick((0, 3, 10**6)), 1,
        ttft_ms={40: 3}, input_lengths={150: 3}, output_lengths={120: 3}, shapes={60: 3},
        sent={"text": {"a": 3}}, classes={1: 3},
    )  # fmt: skip


def _demand(pick: Pick, names: Names) -> records.Demand:
    now_s = names.now_ms // 1000
    second = DemandSecond((now_s - 2) * 1000, (3,) * len(COUNTS), sketches_to_text([{40: 3}] * 6))
    word = GatewayState(pick(names.gateways), "boot", names.now_ms, 3, 1, True, False)
    return records.Demand(pick(names.models), 0, now_s - 1, (second,), (word,), {"text": 3})


def _gang(pick: Pick) -> GangRank | None:
    stages = (GangStage("L4", 1, 16), GangStage("L4", 1, 16))
    return pick((None, None, GangRank("gang", pick((0, 1)), stages, "127.0.0.1:9")))


def _status(pick: Pick, names: Names) -> records.Status:
    now_ms = names.now_ms
    seen = tuple(
        records.ObservedInstance(
            pick(names.instances), pick(names.models), pick(records.PHASES), pick(names.groups),
            pick(tuple(records.InstanceState)), (at,), pick(("127.0.0.1:1", "")),
            now_ms - pick((0, 1000, HOUR_MS)), now_ms - pick((1000, 60_000, HOUR_MS)),
            restarts=pick((0, 1)), in_flight=pick((0, 3)), gang=_gang(pick),
        )
        for at in range(pick((0, 1, 2)))
    )  # fmt: skip
    return records.Status(
        pick(names.nodes), pick(names.pools), "executor", pick((0, 1, 2)), now_ms, seen,
        boot="b", place="p", reclaim_ms=pick((0, 0, now_ms + 60_000, 1)),
        observed_token=pick((0, names.token, names.token + 1)),
    )  # fmt: skip


def _assignment(pick: Pick, names: Names) -> records.Assignment:
    wishes = tuple(
        records.DesiredInstance(
            pick(names.instances), pick(names.models), pick(records.PHASES), pick(names.groups),
            (at,), drain=pick((False, True)),
        )
        for at in range(pick((0, 1, 2)))
    )  # fmt: skip
    return records.Assignment(
        pick(names.nodes), pick(names.pools), pick((1, 2, 7)), pick((names.token, names.token + 1)),
        names.now_ms, wishes, names.now_ms, 900_000,
    )  # fmt: skip


def _routes(pick: Pick, names: Names) -> records.Routes:
    ends = (records.Endpoint(pick(names.instances), "127.0.0.1:1", 8),)
    whole = records.RouteGroup(pick(names.groups), 3.0, ends)
    halves = records.RouteGroup(pick(names.groups), 3.0, prefill=ends, decode=ends)
    groups = pick(((), (whole,), (halves,), (whole, halves)))
    kind = records.TypeRoute("short", 100.0, 50.0, (1.0,) * len(groups))
    split = None
    if len(names.models) > 1:
        cuts, shares = (1,) * (len(names.models) - 1), (0.5,) * len(names.models)
        split = ScoreSplit(names.models, (0.1, 0.5, 0.9), cuts, names.models[0], shares=shares)
    return records.Routes(
        pick(names.models), pick((0, 1, 7)), pick((names.token, names.token + 1)), names.now_ms,
        1000.0, 50.0, groups, names.now_ms, 900_000, start_s=30.0,
        types=pick(((), (kind,))), split=pick((None, None, split)),
        kinds=(records.RequestKind("text"),), advised=pick((False, True)),
    )  # fmt: skip


def _decision(pick: Pick, names: Names) -> records.Decision:
    return records.Decision(
        pick((1, 2, 50)), names.token, pick((*names.models, "*")), pick(records.DECISION_KINDS),
        names.now_ms - pick((0, 1000, HOUR_MS)), True, "why", 3.0, 4.0, 1.0, names.now_ms,
        ((pick(names.groups), 1),), pick((0, names.now_ms + 60_000)), ("surge",),
    )  # fmt: skip


def _plan(pick: Pick, names: Names) -> records.PlanRecord:
    target = records.PlannedCombo(pick(names.models), pick(names.groups), 1, 3.0, 1.0)
    short = {pick(names.models): 1.5}
    return records.PlanRecord(3, names.token, names.now_ms, "full", 3.0, 0.1, (target,), short, 9)


def _ledger(pick: Pick, names: Names) -> records.LedgerEntry:
    minutes = pick(((3,) * 60, (-1,) * 60, (10**9,) * 60, (0, 10**9) * 30))
    hour = names.now_ms // HOUR_MS - pick((0, 1, 2, 71))
    state = ModelState(DemandEstimate(Lengths(500.0, 100.0)), Target(req_per_s=3.0))
    part = pick((ArrivalsHour(hour, minutes), ModelMemory(state, "x")))
    made = write_part(pick(names.models), part, names.token, names.now_ms)
    if not names.ledger:
        return made
    written = pick(names.ledger)
    return pick((made, dataclasses.replace(written, leader_token=names.token)))


def _leadership(pick: Pick, names: Names) -> records.Leadership:
    kind = pick(("renewal", "standby", "resignation", "claim"))
    token = names.token if kind in ("renewal", "resignation") else 0
    return records.Leadership("other", "claim-x", kind, names.now_ms, 0, token)


def _control(pick: Pick, names: Names) -> records.Control:
    kind = pick(("pause", "release", "verdict"))
    return records.Control(
        pick((*names.models, "*")) if kind != "verdict" else pick(names.models), kind,
        pick((True, False)), "ann", "why", names.now_ms, pick((0, names.now_ms + 1000)),
        pick((1, 2)) if kind == "verdict" else 0, names.token if kind == "verdict" else 0,
    )  # fmt: skip


def _service(pick: Pick, names: Names) -> records.DeclaredService:
    texts = [*names.declared.values()] or ["{}"]
    return records.DeclaredService(pick(names.models), pick(texts), names.now_ms)


def _alert(pick: Pick, names: Names) -> records.Alert:
    models = pick(((), names.models, names.models[:1]))
    return records.Alert("f1", "Slow", pick(("firing", "resolved")), names.now_ms, models)


_PLAIN: dict[str, Callable[[Pick, Names], Any]] = {
    "telemetry": _telemetry,
    "demand": _demand,
    "supply.availability": lambda pick, names: records.Availability(
        pick(names.pools), 3, names.now_ms
    ),
    "supply.prices": lambda pick, names: records.Price(pick(names.pools), 1.5, names.now_ms),
    "services": _service,
    "names": lambda pick, names: records.FinalizedNames(
        names.now_ms, dict.fromkeys(names.models, pick((0, names.now_ms)))
    ),
    "controls": _control,
    "alerts": _alert,
    "leadership": _leadership,
    "decisions": _decision,
    "plans": _plan,
    "ledger": _ledger,
    "assignments": _assignment,
    "routes": _routes,
    "dead-letters": lambda _pick, _names: records.DeadLetter("status", 0, 7, "why", "AA==", "r"),
    "status": _status,
}


WRITER = "extreme"
"""Name of the executors and controllers that write `unbelievable` records."""


def unbelievable(names: Names) -> list[tuple[str, bytes | None, bytes]]:
    """Valid (topic, key, record) with values at the bounds, on every topic.

    They must not change a healthy fleet, because their names are not declared or their values are
    not plausible.
    """
    now_ms, node, pool = names.now_ms, names.nodes[-1], names.pools[0]
    late = records.Telemetry(names.models[0], "extreme", "b", MAX_COUNT, MAX_MS, LONGEST_SPAN_MS,
                             MAX_COUNT, *MOST_PER_S[:8], MOST_IN_FLIGHT, MAX_COUNT)  # fmt: skip
    stopped = records.ObservedInstance(
        "extreme", names.models[0], "aggregated", f"extreme:{'9' * 100}",
        records.InstanceState.STOPPED, (63,), "", MAX_MS, MAX_MS, MAX_COUNT, MAX_COUNT, MAX_COUNT,
    )  # fmt: skip
    status = records.Status(node, pool, WRITER, 0, 0, (stopped,), "extreme", "extreme")
    laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)
    )
    second = DemandSecond(MAX_MS, MOST_PER_S, sketches_to_text([{HIGHEST: MOST_COUNT}] * 6))
    word = GatewayState("extreme", "b", MAX_MS, MOST_IN_FLIGHT, MAX_COUNT, True, False)
    made = [
        late,
        dataclasses.replace(late, model="nobody", age_ms=0, end_ms=now_ms),
        records.Demand("nobody", 10**6, MAX_MS // 1000, (second,), (word,), {"x": MAX_COUNT}),
        records.Availability("no/such/pool", 10**6, MAX_MS),
        records.Price("no/such/pool", 100_000.0, MAX_MS),
        records.Price(pool, 100_000.0, MAX_MS),
        records.DeclaredService("extreme", laughs, MAX_MS),
        records.FinalizedNames(0, {"extreme": MAX_MS}),
        records.Control("nobody", "pause", True, "w" * 200, "y" * 2000, MAX_MS, 1),
        records.Control("nobody", "verdict", True, "", "", MAX_MS, 0, MAX_COUNT, MAX_COUNT),
        records.Alert("extreme", "x" * 200, "resolved", MAX_MS, ("nobody",) * 1000),
        records.Leadership("extreme", "extreme", "renewal", MAX_MS, 0, MAX_COUNT),
        records.Leadership("extreme", "extreme", "standby", MAX_MS, MAX_COUNT // 10, MAX_COUNT),
        records.Decision(MAX_COUNT, MAX_COUNT, names.models[0], "hold", MAX_MS, True, "y" * 2000,
                         1e9, 1e9, -1e9, MAX_MS, (), MAX_MS),
        records.PlanRecord(MAX_COUNT, MAX_COUNT, MAX_MS, "extreme", 1e9, 1e9,
                           (records.PlannedCombo("nobody", "extreme", 10**6, 1e9, 1e9),) * 100,
                           {"nobody": 1e9}, MAX_COUNT),
        records.LedgerEntry("groups", "nobody", MAX_COUNT, MAX_MS, "{}"),
        write_part(names.models[0], ArrivalsHour(10_000_000, (10**9,) * 60), MAX_COUNT, MAX_MS),
        records.Assignment("nowhere", "no/such/pool", MAX_COUNT, MAX_COUNT, MAX_MS, (), MAX_MS,
                           MAX_COUNT, 86_400_000),
        records.Routes("nobody", MAX_COUNT, MAX_COUNT, MAX_MS, 1e9, 1e9, (), MAX_MS, MAX_COUNT),
        dataclasses.replace(status, node="nowhere"),
        status,
        records.DeadLetter("status", MAX_COUNT, MAX_COUNT, "y" * 2000, "A" * 90_000, "extreme"),
    ]  # fmt: skip
    return [(topic_of(record).name, key_of(record), encode(record)) for record in made]
