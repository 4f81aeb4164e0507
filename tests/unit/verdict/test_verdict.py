"""The verdict on a model, in each state that a fleet can be in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest

from autoscaler.domain.cluster import Mode
from autoscaler.domain.condition_level import Level, level
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import ModelDemand, observe_demand
from autoscaler.estimate.windows import Stats
from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import ModelStatus, fleet_status
from autoscaler.tick.verdict import Standing, conditions
from streams.cli.doctor import of_status
from streams.cli.status import lines, verdict_text
from streams.console.model_rows import model_row
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, world
from topics.reason_codes import ReasonCode as Code

STEADY = Standing(
    ready=3,
    wanted=3,
    leaving=0,
    unserved_req_per_s=0.0,
    floor=0,
    telemetry_age_s=2.0,
    proposal=0,
    held=None,
    spot=None,
    servers=None,
    uncounted=False,
)
NONE = replace(STEADY, ready=0, wanted=0)
PAUSED = Reason(Code.PAUSED, "chat", ("ann",), quoted="drill")


def window(ended: int, attained: int, failed: int = 0, seconds: int = 300) -> Stats:
    return Stats(
        covered_s=seconds,
        age_ms=0,
        arrivals=ended,
        completions=ended - failed,
        failures=failed,
        refused=0,
        attained=attained,
        req_per_s=ended / seconds,
        mean_input_tokens=None,
        mean_output_tokens=None,
        ttft_p95_ms=None,
        tpot_p95_ms=None,
    )


@dataclass(frozen=True)
class Case:
    local: Stats
    now: Standing
    level: Level
    first: Code
    long: Stats | None = None
    mode: Mode = Mode.ACT
    others: tuple[Code, ...] = ()


WELL, QUIET, DOWN = window(900, 890), window(0, 0), window(900, 0, 900)
CASES = {
    "steady": Case(WELL, STEADY, Level.OK, Code.STEADY),
    "starting": Case(WELL, replace(STEADY, wanted=5), Level.OK, Code.STARTING),
    "leaving": Case(WELL, replace(STEADY, leaving=1), Level.OK, Code.LEAVING),
    "at zero": Case(QUIET, NONE, Level.OK, Code.AT_ZERO),
    "first requests wait for a start": Case(
        replace(QUIET, arrivals=2, req_per_s=0.1), replace(NONE, wanted=1), Level.OK, Code.STARTING
    ),
    "all instances died and requests wait": Case(
        WELL, replace(NONE, wanted=3), Level.BROKEN, Code.NOTHING_READY
    ),
    "outage": Case(DOWN, NONE, Level.BROKEN, Code.NOTHING_READY, others=(Code.NOT_SERVED,)),
    "outage while instances start": Case(
        DOWN, replace(NONE, wanted=2), Level.BROKEN, Code.NOTHING_READY
    ),
    "outage behind a proposal": Case(
        DOWN,
        replace(NONE, proposal=4),
        Level.BROKEN,
        Code.NOTHING_READY,
        mode=Mode.APPROVE,
        others=(Code.PROPOSAL_WAITS,),
    ),
    "outage behind a pause": Case(
        DOWN, replace(NONE, held=PAUSED), Level.BROKEN, Code.NOTHING_READY, others=(Code.PAUSED,)
    ),
    "engines that fail every request": Case(DOWN, STEADY, Level.BROKEN, Code.NOT_SERVED),
    "outage in recommend": Case(DOWN, NONE, Level.BROKEN, Code.NOT_SERVED, mode=Mode.RECOMMEND),
    "recommend": Case(WELL, NONE, Level.OK, Code.RECOMMENDED_ONLY, mode=Mode.RECOMMEND),
    "recommend without counts": Case(
        WELL,
        replace(NONE, uncounted=True),
        Level.ATTENTION,
        Code.SERVERS_UNCOUNTED,
        mode=Mode.RECOMMEND,
    ),
    "far below its promise": Case(window(900, 517), STEADY, Level.BROKEN, Code.PROMISE_BROKEN),
    "a little below its promise": Case(
        window(4000, 3744), STEADY, Level.BROKEN, Code.PROMISE_BROKEN
    ),
    "one miss by chance": Case(window(3, 2), STEADY, Level.OK, Code.STEADY),
    "misses within the promise": Case(window(900, 860), STEADY, Level.OK, Code.STEADY),
    "was below its promise": Case(
        WELL, STEADY, Level.ATTENTION, Code.PROMISE_WAS_BROKEN, long=window(6000, 4000)
    ),
    "below its promise with few requests": Case(
        window(4, 3), STEADY, Level.BROKEN, Code.PROMISE_BROKEN, long=window(40, 20)
    ),
    "short of capacity": Case(
        WELL, replace(STEADY, unserved_req_per_s=2.0), Level.AT_RISK, Code.CAPACITY_SHORT
    ),
    "short of its floor": Case(WELL, replace(STEADY, floor=4), Level.AT_RISK, Code.FLOOR_SHORT),
    "no telemetry for 51 s": Case(
        WELL, replace(STEADY, telemetry_age_s=51.0), Level.AT_RISK, Code.NO_TELEMETRY
    ),
    "never telemetry": Case(
        QUIET, replace(STEADY, telemetry_age_s=None), Level.AT_RISK, Code.NO_TELEMETRY
    ),
    "over its spot limit": Case(
        WELL, replace(STEADY, spot=(0.8, 0.5)), Level.AT_RISK, Code.OVER_SPOT_LIMIT
    ),
    "a proposal waits": Case(
        WELL, replace(STEADY, proposal=4), Level.ATTENTION, Code.PROPOSAL_WAITS, mode=Mode.APPROVE
    ),
    "paused": Case(WELL, replace(STEADY, held=PAUSED), Level.ATTENTION, Code.PAUSED),
}


@pytest.mark.parametrize("name", list(CASES))
def test_each_state_has_its_verdict(name: str) -> None:
    case = CASES[name]
    demand = ModelDemand(local=case.local, long=case.long or case.local)
    found = [one.code for one in conditions(service(mode=case.mode), demand, case.now)]
    assert (level(found), found[0]) == (case.level, case.first)
    assert set(case.others) < set(found)
    assert [level([one]).urgency for one in found] == sorted(
        (level([one]).urgency for one in found), reverse=True
    )


def now(w: World) -> ModelStatus:
    demand = observe_demand(w.windows, ["chat"], w.cluster.policy, w.now_ms)
    seen = Observation(demand, dict(w.statuses))
    return fleet_status(w.state, seen, w.cluster, w.now_ms).models[0]


def shown(found: ModelStatus) -> tuple[bool, str, str]:
    """The words of doctor, status and console: whether there is no fault, the state, the level."""
    answer: dict[str, Any] = {
        "controller": "c", "leads": True, "leader": "c", "tick_age_s": 0.1, "held": {},
        "supply_age_s": {"prices": {}, "availability": {}}, "models": [asdict(found)],
    }  # fmt: skip
    (finding,) = [one for one in of_status(answer) if one.what == "chat"]
    row = model_row(found, service(), ())
    assert row["word"] == finding.state == found.word
    return finding.ok, finding.state, row["level"]


ONE = pool(nodes=3, per_node=1)


@pytest.mark.parametrize("mode", [Mode.ACT, Mode.APPROVE])
def test_doctor_and_console_call_an_outage_a_fault(mode: Mode) -> None:
    """In mode act no instance starts. In mode approve no operator answers the proposal."""
    switches = {"failing": {ONE.id}} if mode is Mode.ACT else {}
    w = world(5.0, service(mode=mode), pools=(ONE,), missing={"chat": 1.0}, **switches).run(400)
    is_fine, state, tone = shown(now(w))
    assert not is_fine and tone == "broken"
    assert state.startswith("no instance is ready, and 5.0 req/s arrive")
    assert ("waits for approval" in state) == (mode is Mode.APPROVE)


def test_doctor_and_console_call_a_broken_promise_a_fault_until_it_is_kept() -> None:
    w = world(5.0, pools=(ONE,)).run(400)
    assert shown(now(w))[::2] == (True, "ok")
    w.missing = {"chat": 0.5}
    w.run(200)
    found = now(w)
    assert shown(found)[::2] == (False, "broken")
    assert "95% promised" in found.word and found.remedy.startswith("shoal explain chat")
    w.missing.clear()
    w.run(330)
    assert shown(now(w))[::2] == (True, "attention")
    w.run(2000)
    assert shown(now(w))[::2] == (True, "ok")


def test_status_shows_what_is_broken_first() -> None:
    well = asdict(now(world(5.0, pools=(ONE,)).run(400)))
    bad = {**well, "model": "zz", "level": "broken", "word": "none of 9 requests was served in 5 s"}
    answer = {
        "controller": "c", "leads": True, "leader": "c", "tick_age_s": 0.1, "held": {}, "modes": [],
        "config": "", "writes": 0, "supply_age_s": {}, "usd_per_h": 3.0,
        "verdict": {"broken": 1, "at_risk": 0, "attention": 0, "ok": 1}, "models": [well, bad],
    }  # fmt: skip
    text = "\n".join(str(line) for line in lines(answer))
    assert verdict_text(answer["verdict"]) == "1 broken, 1 ok" and "1 broken, 1 ok" in text
    assert text.index("zz") < text.index("chat ")
