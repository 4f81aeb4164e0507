"""The configuration of one executor process: its nodes, and the permitted models and engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from executors.engines.engine_protocol import EngineKind
from executors.engines.engine_registry import parse_engines
from executors.node.containers import RUNTIMES
from topics.checks import (
    InvalidValue,
    count,
    machine_text,
    name,
    number,
    object_fields,
    one_of,
    text,
)
from topics.launch_version import model_part
from topics.lora_adapters import DEFAULT_RANK, Adapter, check_adapters
from topics.time_base import TimeBase

_T = TypeVar("_T")
_ANY = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node. pool: its pool id. gpu: GPU type. gpus: number of GPUs.

    Only for simulated nodes: kv_gb_s: rate of KV transfer to this node in 1e9 bytes/s (0 =
    default); provision_s: domain s until a machine without engines is provisioned.
    """

    node: str
    pool: str
    gpu: str
    gpus: int
    kv_gb_s: float = 0.0
    provision_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model by its name in the catalogue. max_len: maximum of tokens in one request.

    weights: path or repository that engines load, "" = source. adapters: LoRA adapters that they
    load with it. digest: of these settings as the file declares them (`topics.launch_version`), ""
    = unknown.
    """

    source: str
    max_len: int
    weights: str = ""
    adapters: tuple[Adapter, ...] = ()
    digest: str = ""

    def launches(self, version: str) -> bool:
        """Whether an instance launched here has the model's part of `version`."""
        wanted = model_part(version)
        return not (wanted and self.digest) or wanted == self.digest


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """The configuration of one executor process.

    bind: address on which engines listen; advertise: address at which gateways reach them.
    metrics_port: port of this executor's own /metrics on loopback, 0 = any free port. engine_env:
    names of further variables that engines inherit. drain_timeout_s, start_timeout_s: domain s,
    used if the assignment sets none. reclaim_command: see `reclaim_hook`; it serves one node.
    containers: the runtime that starts engines with an image, "" = the executor itself runs inside
    the image. faults_file: faults of simulated nodes, see `scripted_faults`; "" = none.
    """

    executor: str
    region: str
    broker: str
    prefix: str
    state_dir: Path
    time_base: TimeBase
    bind: str
    nodes: tuple[NodeConfig, ...]
    models: Mapping[str, ModelConfig]
    engines: Mapping[str, EngineKind]
    advertise: str = "127.0.0.1"
    metrics_port: int = 0
    engine_env: tuple[str, ...] = ()
    drain_timeout_s: float = 120.0
    start_timeout_s: float = 600.0
    reclaim_command: tuple[str, ...] = ()
    containers: str = ""
    faults_file: str = ""

    @property
    def engine_host(self) -> str:
        """The address at which this process reaches its engines."""
        return "127.0.0.1" if self.bind in _ANY else self.bind


def load_config(path: Path) -> ExecutorConfig:
    """Load the JSON file `path`. Raises InvalidValue, which names the offending field."""
    try:
        raw = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidValue("--config", str(path), f"a readable file ({error.strerror})") from None
    except orjson.JSONDecodeError as error:
        raise InvalidValue("--config", str(path), f"JSON ({error})") from None
    return parse_config(raw)


def parse_config(raw: Any) -> ExecutorConfig:
    """Parse the configuration from its JSON value. Unknown keys are refused."""
    keys = ("executor", "region", "broker", "state_dir", "time_base", "nodes", "models", "engines")
    optional = {
        "prefix": "shoal.", "bind": "127.0.0.1", "advertise": "", "metrics_port": 0,
        "engine_env": [], "drain_timeout_s": 120.0, "start_timeout_s": 600.0,
        "reclaim_command": [], "containers": "", "faults_file": "",
    }  # fmt: skip
    top = object_fields("config", raw, keys, optional)
    top["advertise"] = top["advertise"] or top["bind"]
    for key in ("executor", "region", "bind", "advertise"):
        name(key, top[key])
    if top["advertise"] in _ANY:
        allowed = "an address under which other hosts reach this one"
        raise InvalidValue("advertise", top["advertise"], allowed)
    count("metrics_port", top["metrics_port"], 65_535)
    for key in ("drain_timeout_s", "start_timeout_s"):
        number(key, top[key], 0.0, 86_400.0)
    for word in _list("reclaim_command", top["reclaim_command"]):
        text("reclaim_command", word, 4000)
    one_of("containers", top["containers"], ("", *RUNTIMES))
    text("faults_file", top["faults_file"], 4000)
    for variable in _list("engine_env", top["engine_env"]):
        name("engine_env", variable)
    for key in ("broker", "state_dir", "time_base"):
        text(key, top[key], 4000)
    nodes = tuple(_node(f"nodes[{i}]", item) for i, item in enumerate(_list("nodes", top["nodes"])))
    for node in nodes:
        if sum(other.node == node.node for other in nodes) > 1:
            raise InvalidValue("nodes", node.node, "each node once")
    return ExecutorConfig(
        executor=top["executor"],
        region=top["region"],
        broker=top["broker"],
        prefix=top["prefix"],
        state_dir=Path(top["state_dir"]),
        time_base=TimeBase.parse(top["time_base"]),
        bind=top["bind"],
        nodes=nodes,
        models=_mapping("models", top["models"], _model),
        engines=parse_engines("engines", top["engines"]),
        advertise=top["advertise"],
        metrics_port=top["metrics_port"],
        engine_env=tuple(top["engine_env"]),
        drain_timeout_s=top["drain_timeout_s"],
        start_timeout_s=top["start_timeout_s"],
        reclaim_command=tuple(top["reclaim_command"]),
        containers=top["containers"],
        faults_file=top["faults_file"],
    )


def _node(where: str, raw: Any) -> NodeConfig:
    simulated = {"kv_gb_s": 0.0, "provision_s": 0.0}
    item = object_fields(where, raw, ("node", "pool", "gpu", "gpus"), simulated)
    for key in ("node", "pool", "gpu"):
        name(f"{where}.{key}", item[key])
    count(f"{where}.gpus", item["gpus"], 64)
    number(f"{where}.kv_gb_s", item["kv_gb_s"], 0.0, 1e6)
    number(f"{where}.provision_s", item["provision_s"], 0.0, 86_400.0)
    return NodeConfig(**item)


def _model(where: str, raw: Any) -> ModelConfig:
    optional = {"weights": "", "adapters": [], "digest": ""}
    item = object_fields(where, raw, ("source", "max_len"), optional)
    machine_text(f"{where}.digest", item["digest"], 64)
    text(f"{where}.source", item["source"], 500)
    text(f"{where}.weights", item["weights"], 4000)
    count(f"{where}.max_len", item["max_len"], 10**8)
    adapters = tuple(
        _adapter(f"{where}.adapters[{i}]", one)
        for i, one in enumerate(_list(f"{where}.adapters", item["adapters"]))
    )
    check_adapters(adapters)
    return ModelConfig(item["source"], item["max_len"], item["weights"], adapters, item["digest"])


def _adapter(where: str, raw: Any) -> Adapter:
    item = object_fields(where, raw, ("name", "weights"), {"rank": DEFAULT_RANK})
    try:
        return Adapter(**item)
    except InvalidValue as error:
        raise InvalidValue(f"{where}.{error.field}", error.value, error.allowed) from None


def _list(where: str, raw: Any) -> list[Any]:
    if not isinstance(raw, list):
        raise InvalidValue(where, raw, "a JSON array")
    return raw


def _mapping(where: str, raw: Any, read: Callable[[str, Any], _T]) -> dict[str, _T]:
    if not isinstance(raw, dict):
        raise InvalidValue(where, raw, "a JSON object")
    for key in raw:
        name(where, key)
    return {key: read(f"{where}.{key}", item) for key, item in raw.items()}
