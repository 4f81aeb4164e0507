"""Bad values of an executor's configuration are refused with field, value and what is allowed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest

from executors.node.executor_config import load_config, parse_config
from topics.checks import InvalidValue

GOOD: dict[str, Any] = {
    "executor": "ex",
    "region": "r",
    "broker": "127.0.0.1:9",
    "state_dir": "/state",
    "time_base": "2.0,1700000000000,0",
    "nodes": [{"node": "n0", "pool": "r/p/owned", "gpu": "H100-SXM", "gpus": 8}],
    "models": {"chat": {"source": "org/model", "max_len": 8192}},
    "engines": {},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    where: Any = raw
    *folders, last = path.split("/")
    for key in folders:
        where = where[int(key) if key.isdigit() else key]
    where[last] = value
    return raw


def test_defaults_fit_an_executor_on_loopback() -> None:
    made = parse_config(GOOD)
    assert (made.prefix, made.bind, made.advertise) == ("shoal.", "127.0.0.1", "127.0.0.1")
    assert (made.metrics_port, made.engine_env, made.reclaim_command) == (0, (), ())
    assert (made.drain_timeout_s, made.start_timeout_s) == (120.0, 600.0)
    assert (made.containers, made.faults_file, made.state_dir) == ("", "", Path("/state"))
    assert made.time_base.speed == 2.0
    assert (made.nodes[0].kv_gb_s, made.nodes[0].provision_s) == (0.0, 0.0)
    assert made.models["chat"].weights == "" and made.models["chat"].adapters == ()


def test_values_are_taken_as_given() -> None:
    made = parse_config(
        {
            **GOOD,
            "prefix": "p.", "bind": "0.0.0.0", "advertise": "host.example", "metrics_port": 65_535,
            "engine_env": ["HF_HOME"], "drain_timeout_s": 86_400.0, "start_timeout_s": 0.0,
            "reclaim_command": ["notice", "--now"], "containers": "podman", "faults_file": "f",
            "nodes": [{**GOOD["nodes"][0], "gpus": 64, "kv_gb_s": 1e6, "provision_s": 86_400.0}],
            "models": {"chat": {"source": "s", "max_len": 10**8, "weights": "/w", "adapters": [
                {"name": "a", "weights": "/a", "rank": 8}, {"name": "b", "weights": "/b"}]}},
        }
    )  # fmt: skip
    assert (made.prefix, made.bind, made.advertise) == ("p.", "0.0.0.0", "host.example")
    assert made.engine_host == "127.0.0.1"
    assert (made.metrics_port, made.engine_env) == (65_535, ("HF_HOME",))
    assert (made.drain_timeout_s, made.start_timeout_s) == (86_400.0, 0.0)
    assert made.reclaim_command == ("notice", "--now")
    assert (made.containers, made.faults_file) == ("podman", "f")
    assert made.nodes[0].gpus == 64 and made.nodes[0].kv_gb_s == 1e6
    assert [(one.name, one.rank) for one in made.models["chat"].adapters] == [("a", 8), ("b", 16)]
    bound = parse_config({**GOOD, "bind": "10.0.0.7"})
    assert (bound.engine_host, bound.advertise) == ("10.0.0.7", "10.0.0.7")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("executor", "", "executor"),
        ("region", 7, "region"),
        ("bind", "", "bind"),
        ("bind", "0.0.0.0", "advertise"),
        ("advertise", "::", "advertise"),
        ("metrics_port", 65_536, "metrics_port"),
        ("metrics_port", -1, "metrics_port"),
        ("drain_timeout_s", -0.1, "drain_timeout_s"),
        ("start_timeout_s", 86_401.0, "start_timeout_s"),
        ("reclaim_command", "notice", "reclaim_command"),
        ("reclaim_command", [7], "reclaim_command"),
        ("reclaim_command", ["x" * 4001], "reclaim_command"),
        ("containers", "lxc", "containers"),
        ("faults_file", 7, "faults_file"),
        ("faults_file", "x" * 4001, "faults_file"),
        ("engine_env", {}, "engine_env"),
        ("engine_env", ["A B"], "engine_env"),
        ("broker", 7, "broker"),
        ("broker", "x" * 4001, "broker"),
        ("state_dir", None, "state_dir"),
        ("time_base", [], "time_base"),
        ("nodes", {}, "nodes"),
        ("nodes", [GOOD["nodes"][0], GOOD["nodes"][0]], "nodes"),
        ("nodes/0/node", "", "nodes[0].node"),
        ("nodes/0/pool", None, "nodes[0].pool"),
        ("nodes/0/gpu", 1, "nodes[0].gpu"),
        ("nodes/0/gpus", 65, "nodes[0].gpus"),
        ("nodes/0/kv_gb_s", -1.0, "nodes[0].kv_gb_s"),
        ("nodes/0/kv_gb_s", 1.1e6, "nodes[0].kv_gb_s"),
        ("nodes/0/provision_s", 86_401.0, "nodes[0].provision_s"),
        ("nodes/0/extra", 1, "nodes[0]"),
        ("models", [], "models"),
        ("models", {"": {}}, "models"),
        ("models/chat/source", "x" * 501, "models.chat.source"),
        ("models/chat/weights", "x" * 4001, "models.chat.weights"),
        ("models/chat/max_len", 10**8 + 1, "models.chat.max_len"),
        ("models/chat/adapters", {}, "models.chat.adapters"),
        ("models/chat/adapters", [{"name": "", "weights": "w"}], "models.chat.adapters[0].name"),
        ("models/chat/adapters", [{"name": "a"}], "models.chat.adapters[0].weights"),
        ("extra", 1, "config"),
    ],
)
def test_a_bad_value_is_refused_with_its_field(path: str, value: Any, field: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        parse_config(changed(path, value))
    assert refusal.value.field == field and refusal.value.allowed


@pytest.mark.parametrize("key", sorted(GOOD))
def test_every_part_of_the_configuration_is_required(key: str) -> None:
    with pytest.raises(InvalidValue, match=key):
        parse_config({name: value for name, value in GOOD.items() if name != key})


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a short path stands whole in the message
    path = Path("executor.json")
    with pytest.raises(InvalidValue, match=r"executor\.json.*readable"):
        load_config(path)
    path.write_bytes(b"{")
    with pytest.raises(InvalidValue, match="JSON"):
        load_config(path)
    path.write_bytes(orjson.dumps(GOOD))
    assert load_config(path) == parse_config(GOOD)
