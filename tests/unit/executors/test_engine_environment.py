"""The variables of an engine, and the launch tag in them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from executors.engines.engine_protocol import LaunchLine
from executors.node import procfs
from executors.node.engine_environment import LaunchTag, engine_environment, read_tag
from topics.fleet import DesiredInstance

WISH = DesiredInstance("a", "chat", "decode", "g", (1, 3))
TAG = LaunchTag("l1", "n0", WISH, (20_001, 20_002), 7000)
LINE = LaunchLine(("engine",), (("TUNED", "1"),))


def environment(ours: dict[str, str], passed: tuple[str, ...] = ()) -> dict[str, str]:
    return engine_environment(LINE, TAG, "/state", passed, ours)


def test_an_engine_inherits_only_listed_variables() -> None:
    ours = {"PATH": "/bin", "LC_ALL": "C", "SHOAL_NODE_KEY": "secret", "HTTPS_PROXY": "u:p@h"}
    made = environment(ours)
    assert made["PATH"] == "/bin" and made["LC_ALL"] == "C" and made["TUNED"] == "1"
    assert not {"SHOAL_NODE_KEY", "HTTPS_PROXY"} & made.keys()
    assert environment(ours, ("HTTPS_PROXY",))["HTTPS_PROXY"] == "u:p@h"
    assert made["SPT_NOENV"] == "1"


@pytest.mark.parametrize(
    ("ours", "visible"),
    [("", "1,3"), ("4, 5,6,7", "5,7"), ("4,5", "5,3"), ("GPU-a,GPU-b,,GPU-c,GPU-d", "GPU-b,GPU-d")],
)
def test_an_engine_sees_its_gpus_among_those_of_the_executor(ours: str, visible: str) -> None:
    assert environment({"CUDA_VISIBLE_DEVICES": ours})["CUDA_VISIBLE_DEVICES"] == visible


def test_the_tag_of_a_process_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = environment({})
    monkeypatch.setattr(procfs, "environment", lambda _: variables)
    assert read_tag(1, "/state") == TAG
    assert read_tag(1, "/other") is None
    variables = {**variables, "SHOAL_NODE": ""}
    assert read_tag(1, "/state") is None


@pytest.mark.parametrize(
    "changes", [{"ports": 7}, {"ports": ["x"]}, {"at": None}, {"desired": {}}, None]
)
def test_of_a_damaged_tag_the_node_is_known(
    changes: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = environment({})
    if changes is None:
        del variables["SHOAL_LAUNCH"]
    else:
        told = {**orjson.loads(variables["SHOAL_LAUNCH"]), **changes}
        variables["SHOAL_LAUNCH"] = orjson.dumps(told).decode()
    monkeypatch.setattr(procfs, "environment", lambda _: variables)
    assert read_tag(1, "/state") == "n0"
