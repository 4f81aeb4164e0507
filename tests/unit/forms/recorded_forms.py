"""Records the present forms of topics and of the decision log:
`python -m tests.unit.forms.recorded_forms FOLDER`. Run it once for a release; later versions must
read the files."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from autoscaler.state.effects import (
    PublishAssignment,
    PublishDecision,
    PublishLedger,
    PublishPlan,
    PublishRoutes,
)
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import T0, world
from tests.unit.decision_log.recorded_worlds import record
from topics.alerts import Alert
from topics.codec import encode
from topics.controls import Control
from topics.supply import Availability, Price
from topics.telemetry import Telemetry
from topics.topic_table import TABLE

_PUBLISHED = (PublishAssignment, PublishDecision, PublishLedger, PublishPlan, PublishRoutes)
_SECONDS = 150
_TELEMETRY = Telemetry(
    "chat", "gateway-1", "b00t", 7, T0, 1000, 12, 5, 4, 0, 1, 4, 5000, 4000, 800, 3, 2,
    ttft_ms={30: 4}, tpot_ms={5: 4}, sent={"all": {"chat": 5}},
)  # fmt: skip


def write(folder: Path) -> None:
    """Write topics.jsonl and a decision log to `folder`."""
    one = pool("one", nodes=4, per_node=1)
    w = world(lambda _model, t: 25.0 if t > 90 else 8.0, service("chat"), pools=(one,), seed=3)
    w.prices[one.id] = Price(one.id, 7.5, T0)
    w.availability[one.id] = Availability(one.id, 3, T0)
    w.say("chat", "freeze")
    record(w, folder / "log", _SECONDS)
    last = {}
    for effect in w.effects:
        if isinstance(effect, _PUBLISHED):
            value = effect.record
            topic = next(topic for topic in TABLE if topic.record is type(value))
            last[topic.name, topic.key(value)] = value
    found = [(name, value) for (name, _), value in last.items()]
    found += [("status", status) for status in w.statuses.values()]
    found += [("controls", one) for one in w.controls.values() if isinstance(one, Control)]
    found += [("supply.prices", one) for one in w.prices.values()]
    found += [("supply.availability", one) for one in w.availability.values()]
    found += [("telemetry", _TELEMETRY), ("alerts", Alert("a", "Slow", "firing", T0, ("chat",)))]
    lines = [orjson.dumps([name, orjson.Fragment(encode(value))]) for name, value in found]
    (folder / "topics.jsonl").write_bytes(b"\n".join(lines) + b"\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
