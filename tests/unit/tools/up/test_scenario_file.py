"""Scenario files: the shipped ones are valid, and bad input names file, line, key and what is
allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.supply_script import (
    LaunchesFail,
    NodesLimited,
    NodesLost,
    PriceChanged,
)
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.tools.backtest.supply_files import load_supply
from streams.tools.replay.traces import load_trace
from streams.tools.up.scenario_file import (
    SHIPPED,
    DemandChanged,
    ScenarioEvent,
    demand_changes,
    open_scenario,
    read_events,
    read_settings,
)

DATA = Path(__file__).parents[4] / "streams" / "data"
HEAD = f"""about: a test
trace: {DATA}/surge.csv.gz
config: {DATA}/demo.yaml
events:
"""


def events_of(folder: Path, *events: str) -> tuple[ScenarioEvent, ...]:
    """The events of a scenario file with these lines."""
    path = folder / "mine.yaml"
    path.write_text(HEAD + "".join(f"  e{n}: {text}\n" for n, text in enumerate(events)))
    root = open_scenario(str(path))
    settings = read_settings(root)
    return read_events(root, load_config(settings.config).cluster)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_fits_one_screen_and_its_trace_and_supply_are_readable(
    name: str,
) -> None:
    root = open_scenario(name)
    settings = read_settings(root)
    config = load_config(settings.config)
    events = read_events(root, config.cluster)
    trace = load_trace(settings.trace)
    assert set(trace.models) <= {service.model for service in config.cluster.services}
    assert all(event.at_s < trace.duration_s for event in events)
    load_supply(settings.supply, config.cluster, 0.0, 0.0)
    lines = Path(root.file).read_text().splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 100
    assert settings.name == name
    assert bool(events) == (name not in ("calm", "roles"))


def test_each_kind_becomes_its_event(tmp_path: Path) -> None:
    found = events_of(
        tmp_path,
        "{at: 9m, kind: reclaim, pool: eu-west/l4/spot, keep: 1, notice: 30s, for: 2m}",
        "{at: 0s, kind: price, pool: eu-west/l4/spot, price: 1.5}",
        "{at: 1m, kind: launch_failures, pool: us-east/h100/owned, for: 1m}",
        "{at: 2m, kind: node_loss, pool: us-east/h100/owned, nodes: 1, for: 1m}",
        "{at: 3m, kind: demand, factor: 2, for: 1m, model: code}",
    )
    assert found[:3] == (
        PriceChanged(0.0, "eu-west/l4/spot", 1.5),
        LaunchesFail(60.0, "us-east/h100/owned", 120.0),
        NodesLost(120.0, "us-east/h100/owned", 1, 180.0),
    )
    assert found[4:] == (
        NodesLimited(540.0, "eu-west/l4/spot", 1, 30.0),
        NodesLimited(660.0, "eu-west/l4/spot", 16, 30.0),
    )
    assert isinstance(found[3], DemandChanged)
    (change,) = demand_changes(found)
    assert (change.from_ms, change.until_ms, change.factor, change.model) == (
        180_000.0,
        240_000.0,
        2.0,
        "code",
    )


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ("{kind: price, pool: eu-west/l4/spot, price: 1}", "events.e0.at: is missing"),
        ("{at: 5, kind: price, pool: eu-west/l4/spot, price: 1}", "a duration with its unit"),
        ("{at: 5s, kind: flood}", "'flood' is not allowed; allowed: price or availability"),
        ("{at: 5s, kind: price, pool: eu-west/l4/spot}", "events.e0.price: kind price needs it"),
        ("{at: 5s, kind: price, pool: eu-west/a100, price: 1}", "is not one of us-east/h100/owned"),
        ("{at: 5s, kind: price, pool: us-east/h100/owned, price: 1}", "is owned: it has no price"),
        (
            "{at: 5s, kind: price, pool: eu-west/l4/spot, price: 1, nodes: 2}",
            "kind price has no such key; allowed: at, kind, pool, price",
        ),
        (
            "{at: 5s, kind: price, pool: eu-west/l4/spot, price: 1, prize: 2}",
            "unknown key; did you mean price?",
        ),
        ("{at: 5s, kind: demand, for: 1m, factor: -1}", "events.e0.factor: -1 is not allowed"),
        ("{at: 5s, kind: demand, for: 1m, factor: 2, model: x}", "'x' is not one of chat, code"),
    ],
)
def test_a_bad_event_is_refused_with_its_line_and_key(
    tmp_path: Path, event: str, message: str
) -> None:
    with pytest.raises(UserError) as refused:
        events_of(tmp_path, event)
    assert message in str(refused.value)
    assert "mine.yaml:5:" in str(refused.value)


def test_an_unknown_name_lists_the_shipped_scenarios() -> None:
    with pytest.raises(InvalidValue, match="calm, day, spot-storm"):
        open_scenario("night")


def test_a_missing_trace_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("about: a test\ntrace: none.csv\nconfig: none.yaml\n")
    with pytest.raises(UserError, match=r"mine.yaml:2: trace: .*none.csv: no such file"):
        read_settings(open_scenario(str(path)))
