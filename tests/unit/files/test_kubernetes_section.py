"""`kubernetes:` of a pool, and the executor's configuration that is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from executors.kubernetes.kubernetes_config import PoolMode, parse_kubernetes_config
from streams.cli import run_executor as command
from streams.cli import run_kubernetes_executor
from streams.cli.main import main
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

FILE = """
regions:
  us:
    l4:
      gpu: L4
      per_node: 4
      price: 2.8
      spot_price: 1.1
      max: 3
      kubernetes: KUBERNETES
    owned: {gpu: L4, owned: true, nodes: 2}
models:
  chat: {source: Qwen/Qwen3-8B, slo: {ttft: 2s, tpot: 60ms}}
"""


def file(folder: Path, kubernetes: str) -> Path:
    path = folder / "shoal.yaml"
    path.write_text(FILE.replace("KUBERNETES", kubernetes))
    return path


def test_markets_of_a_pool_have_labels_of_their_own(tmp_path: Path) -> None:
    text = "{mode: pods, nodes: {type: g6}, spot_nodes: {capacity: spot}, node_wait: 5m}"
    pools = load_config(file(tmp_path, text)).kubernetes
    assert set(pools) == {"us/l4/on-demand", "us/l4/spot"}
    assert pools["us/l4/spot"].nodes == {"type": "g6", "capacity": "spot"}
    assert pools["us/l4/on-demand"].nodes == {"type": "g6"}
    assert pools["us/l4/spot"].node_wait_s == 300.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{mode: pods}", "at least one label"),
        ("{mode: own, nodes: {a: b}}", "observe"),
        ("{nodes: {a: true}}", "the value of a Kubernetes label"),
        ("{nodes: {'a b': c}}", "is not the name of a Kubernetes label"),
        ("{nodes: {a: b}, gpu_resource: ' '}", "gpu_resource"),
        ("{nodes: {a: b}, nodewait: 5m}", "did you mean node_wait"),
    ],
)
def test_mistakes_are_refused_with_what_is_allowed(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=error):
        load_config(file(tmp_path, text))


def test_the_command_makes_the_executors_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, ...]] = []
    path = file(tmp_path, "{mode: pods, nodes: {type: g6}, queue: gpus}")

    def become(*words: Any) -> None:
        started.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(run_kubernetes_executor, "become", become)
    monkeypatch.setattr(command, "reachable", lambda *_: "127.0.0.1:9092")
    monkeypatch.setattr(command, "found_address", lambda _: "10.0.0.1")
    with pytest.raises(SystemExit):
        main(
            ["executor", "--kubernetes", "--config", str(path), "--pools", "us/l4/spot",
             "--state-dir", str(tmp_path / "state"), "--route-lag", "2"]
        )  # fmt: skip
    module, _, made, *_ = started[0]
    config = parse_kubernetes_config(orjson.loads(Path(made).read_bytes()))
    assert module == "executors.kubernetes"
    assert [node.node for node in config.executor.nodes] == [f"us.l4.spot.{n}" for n in range(3)]
    assert config.pools["us/l4/spot"].mode is PoolMode.PODS
    assert config.pools["us/l4/spot"].queue == "gpus"
    assert config.route_lag_s == 2.0


def test_a_file_without_a_pool_to_act_on_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "reachable", lambda *_: "127.0.0.1:9092")
    monkeypatch.setattr(command, "found_address", lambda _: "10.0.0.1")
    path = file(tmp_path, "{nodes: {type: g6}}")
    assert main(["executor", "--kubernetes", "--config", str(path)]) != 0
    assert "no pool has `kubernetes:` with mode scale or pods" in capsys.readouterr().err
