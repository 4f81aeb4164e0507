"""Read the scenario of a run: a YAML file with a trace, a configuration, and events.

Every key is described once here; docs/reference/configuration.md shows the same as tables. Paths
are relative to the scenario's folder. Times count from the start of the trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.validation import InvalidValue
from autoscaler.simulation.supply_script import (
    AvailabilityChanged,
    LaunchesFail,
    NodesLimited,
    NodesLost,
    PriceChanged,
    ScriptEvent,
)
from streams.files import units
from streams.files.keys import Group, Key, Named
from streams.files.yaml_tree import ConfigError, Section, read
from streams.tools.replay.demand_changes import MOST_FACTOR, DemandChange

SHIPPED = ("calm", "day", "spot-storm", "outage", "roles")
KINDS = ("price", "availability", "reclaim", "launch_failures", "node_loss", "demand")
_FROM_START = units.duration_between("0s", "30d")


@dataclass(frozen=True, slots=True)
class DemandChanged:
    """The demand is `change.factor` times that of the trace. The replay sends it; this event only
    tells it."""

    at_s: float
    change: DemandChange


ScenarioEvent = ScriptEvent | DemandChanged


@dataclass(frozen=True, slots=True)
class Settings:
    """A scenario without its events. speed: domain s per real s. supply: files as for
    `shoal backtest --supply`, each relative to the scenario's folder."""

    name: str
    about: str
    trace: Path
    columns: str
    config: Path
    speed: float
    supply: tuple[str, ...]


ABOUT = Key("about", units.text, "What happens, in one sentence. The run shows it.")
TRACE = Key("trace", units.text, "File of the requests to replay, of any form of `--trace`.")
COLUMNS = Key(
    "columns", units.text, "Columns of the trace, as for `--columns`.", otherwise="found by name"
)
CONFIG = Key("config", units.text, "The `shoal.yaml` of the run.")
SPEED = Key("speed", units.number(0.01, 1000.0), "Domain seconds per real second.", "10")
SUPPLY = Key(
    "supply",
    units.list_of(units.text, "[spot.csv]"),
    "Files with prices and available nodes over time: `FILE` with the columns time, pool, price "
    "and nodes, or `POOL=FILE` with time,nodes.",
    otherwise="prices and nodes as declared",
)
AT = Key("at", _FROM_START, "Time of the event, from the start of the trace.")
KIND = Key("kind", units.word(*KINDS), "Kind of the event.")
POOL = Key(
    "pool", units.text, "Pool id: region/pool/market.", otherwise="required except by `demand`"
)
PRICE = Key(
    "price",
    units.number(0.0, 1e5),
    "`price`: the new price in USD per node and hour.",
    otherwise="required by `price`",
)
NODES = Key(
    "nodes",
    units.count(0, 100_000),
    "`availability`: this many further nodes can be rented. `node_loss`: this many nodes are lost.",
    otherwise="required by both",
)
KEEP = Key(
    "keep",
    units.count(0, 100_000),
    "`reclaim`: at most this many nodes can be rented; the newest ones above it are reclaimed.",
    otherwise="0",
)
NOTICE = Key(
    "notice",
    units.duration_between("1s", "1h"),
    "`reclaim`: time from the notice to the loss of the node.",
    otherwise="2m",
)
FOR = Key(
    "for",
    units.duration_s,
    "Duration of the event.",
    otherwise="required by `launch_failures` and `demand`; else until the end",
)
FACTOR = Key(
    "factor",
    units.number(0.0, MOST_FACTOR),
    "`demand`: factor by which the number of requests is multiplied.",
    otherwise="required by `demand`",
)
MODEL = Key("model", units.text, "`demand`: the model.", otherwise="all models")
EVENT = Group(
    "One event.", (AT, KIND, POOL, PRICE, NODES, KEEP, NOTICE, FOR, FACTOR, MODEL)
)  # fmt: skip
SCENARIO = Group(
    "A scenario of `shoal up`.",
    (ABOUT, TRACE, COLUMNS, CONFIG, SPEED, SUPPLY),
    {"events": Named("Events by name.", EVENT)},
)
_KEYS: Mapping[str, tuple[tuple[Key[float] | Key[int] | Key[str], ...], tuple[str, ...]]] = {
    "price": ((POOL, PRICE), ()),
    "availability": ((POOL, NODES), ()),
    "reclaim": ((POOL,), ("keep", "notice", "for")),
    "launch_failures": ((POOL, FOR), ()),
    "node_loss": ((POOL, NODES), ("for",)),
    "demand": ((FOR, FACTOR), ("model",)),
}
"""Required keys and names of optional keys, by kind."""


def scenario_path(name: str) -> Path:
    """The file of `name`: a shipped scenario, or a path."""
    if name in SHIPPED:
        return Path(str(resources.files("streams").joinpath(f"data/scenarios/{name}.yaml")))
    return Path(name)


def open_scenario(name: str) -> Section:
    """The root of the scenario `name`. UserError: there is no such file, or it is no YAML."""
    path = scenario_path(name)
    if not path.exists():
        raise InvalidValue("--scenario", name, f"{', '.join(SHIPPED)}, or a file")
    return read(path, "trace, config and events")[0]


def read_settings(root: Section) -> Settings:
    """The settings of a scenario. ConfigError names file, line and key."""
    folder = Path(root.file).parent
    found = Settings(
        name=Path(root.file).stem,
        about=ABOUT.take(root),
        trace=folder / TRACE.take(root),
        columns=COLUMNS.take_or(root, ""),
        config=folder / CONFIG.take(root),
        speed=SPEED.take(root),
        supply=tuple(_beside(folder, text) for text in SUPPLY.take_or(root, ())),
    )
    for key, path in (("trace", found.trace), ("config", found.config)):
        if not path.is_file():
            raise root.error(key, f"{path}: no such file")
    SCENARIO.finish(root)
    return found


def _beside(folder: Path, text: str) -> str:
    pool, equals, file = text.rpartition("=")
    return f"{pool}{equals}{folder / file}"


def read_events(root: Section, cluster: Cluster) -> tuple[ScenarioEvent, ...]:
    """The events of a scenario in order of time. ConfigError: a key is invalid, or the
    configuration lacks the pool or model of an event."""
    section = root.section("events")
    found: list[ScenarioEvent] = []
    for _, event in section.children() if section is not None else ():
        found += _events(event, cluster)
        EVENT.finish(event)
    return tuple(sorted(found, key=lambda one: one.at_s))


def _events(event: Section, cluster: Cluster) -> list[ScenarioEvent]:
    at_s, kind = AT.take(event), KIND.take(event)
    needed, optional = _KEYS[kind]
    for key in needed:
        if key.name not in event:
            raise ConfigError(
                event.file, event.line, f"{event.path}.{key.name}", f"kind {kind} needs it"
            )
    allowed = ("at", "kind", *(key.name for key in needed), *optional)
    for name in event:
        if name not in allowed and any(key.name == name for key in EVENT.keys):
            raise event.error(name, f"kind {kind} has no such key; allowed: {', '.join(allowed)}")
    for_s = FOR.take_or(event, math.inf)
    if kind == "demand":
        model = MODEL.take_or(event, "")
        models = [service.model for service in cluster.services]
        if model and model not in models:
            raise event.error("model", f"{model!r} is not one of {', '.join(models)}")
        factor = FACTOR.take(event)
        change = DemandChange(1000.0 * at_s, 1000.0 * (at_s + for_s), factor, model)
        return [DemandChanged(at_s, change)]
    pools = {pool.id: pool for pool in cluster.pools}
    pool_id = POOL.take(event)
    if pool_id not in pools:
        raise event.error("pool", f"{pool_id!r} is not one of {', '.join(pools)}")
    pool = pools[pool_id]
    if pool.market is Market.OWNED and kind in ("price", "availability", "reclaim"):
        raise event.error("pool", f"{pool_id} is owned: it has no {kind}")
    match kind:
        case "price":
            return [PriceChanged(at_s, pool_id, PRICE.take(event))]
        case "availability":
            return [AvailabilityChanged(at_s, pool_id, NODES.take(event))]
        case "reclaim":
            keep, notice_s = KEEP.take_or(event, 0), NOTICE.take_or(event, 120.0)
            limited: list[ScenarioEvent] = [NodesLimited(at_s, pool_id, keep, notice_s)]
            if math.isfinite(for_s):
                limited.append(NodesLimited(at_s + for_s, pool_id, pool.max_nodes, notice_s))
            return limited
        case "launch_failures":
            return [LaunchesFail(at_s, pool_id, at_s + for_s)]
        case _:
            return [NodesLost(at_s, pool_id, NODES.take(event), at_s + for_s)]


def demand_changes(events: tuple[ScenarioEvent, ...]) -> tuple[DemandChange, ...]:
    """The changes of demand among `events`."""
    return tuple(event.change for event in events if isinstance(event, DemandChanged))
