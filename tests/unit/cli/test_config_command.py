"""`shoal config` checks files, prints the schema and writes a first file that can be planned."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from executors.kubernetes.cluster_supply import found_pools, pools_yaml
from executors.kubernetes.node_view import NodeView
from streams.cli import config, kubernetes
from streams.cli.main import main
from streams.files.config_draft import DraftModel, merge_servers
from streams.files.shoal_yaml import load_config

MODELS = "chat=meta-llama/Llama-3.1-8B-Instruct"
GPUS = "L40S:8@1.90,4xL4:1@owned"
LABELS = {"node.kubernetes.io/instance-type": "g6", "nvidia.com/gpu.product": "NVIDIA-L4"}
SERVED = {
    "data": [
        {"id": "chat", "root": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 8192},
        {"id": "chat-sql", "root": "/adapters/sql", "parent": "chat"},
    ]
}


@pytest.fixture
def vllm() -> Iterator[str]:
    """Address of a server that lists SERVED."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(SERVED).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


def test_a_first_file_has_the_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shoal.yaml"
    options = ["--models", MODELS, "--gpus", GPUS, "--slo", "1s,50ms", "--workload", "3x900+150"]
    assert main(["config", "init", "--out", str(path), *options]) == 0
    cluster = load_config(path).cluster
    (chat,) = cluster.services
    assert (chat.model, chat.architecture.name) == ("chat", "meta-llama/Llama-3.1-8B-Instruct")
    assert (chat.slo.ttft_ms, chat.slo.tpot_ms, chat.req_per_s) == (1000.0, 50.0, 3.0)
    pools = {pool.name: pool for pool in cluster.pools}
    assert (pools["l40s"].max_nodes, pools["l40s"].price_usd_per_h) == (8, 1.9)
    assert (pools["l4"].per_node, str(pools["l4"].market)) == (4, "owned")
    assert f"shoal plan --config {path}" in capsys.readouterr().out


def test_running_servers_name_the_models_without_adapters(vllm: str, tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    assert main(["config", "init", "--out", str(path), "--vllm", vllm, "--gpus", GPUS]) == 0
    (chat,) = load_config(path).cluster.services
    assert (chat.model, chat.max_len_tokens) == ("chat", 8192)


def test_a_prometheus_gives_the_demand_and_the_number_of_the_servers(
    vllm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shoal.yaml"
    options = ["--vllm", vllm, "--gpus", GPUS, "--prometheus", "http://prom:9090"]
    assert main(["config", "init", "--out", str(path), *options]) == 0
    found = load_config(path)
    (chat,) = found.cluster.services
    assert (chat.demand_query, chat.unmanaged) == ("vllm", "chat:a1@region-1/l40s/on-demand")
    assert [server.url for server in found.prometheus.values()] == ["http://prom:9090"]
    assert "(1 model, 2 pools, 1 region, mode recommend)" in capsys.readouterr().out


def test_both_markets_of_a_pool_count_as_one_pool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1, spot_price: 0.4}}}\n"
        "models: {m: {source: meta-llama/Llama-3.1-8B-Instruct, slo: {ttft: 2s, tpot: 100ms},"
        " max_len: 4096}}\n"
    )
    assert main(["config", "check", str(path)]) == 0
    assert "1 model, 1 pool, 1 region" in capsys.readouterr().out


def test_servers_of_the_same_model_declare_it_once(vllm: str, tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    servers = ["--vllm", vllm, "--vllm", vllm]
    assert main(["config", "init", "--out", str(path), *servers, "--gpus", GPUS]) == 0
    assert [service.model for service in load_config(path).cluster.services] == ["chat"]


def test_the_shortest_length_of_the_servers_counts() -> None:
    servers = [[DraftModel("chat", "a/b", longest)] for longest in (0, 8192, 4096)]
    assert merge_servers(servers) == (DraftModel("chat", "a/b", 4096),)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--models", MODELS, "--gpus", "L40S"], "gpus: 'L40S' is not allowed"),
        (["--models", "", "--gpus", GPUS], "at least one"),
        (["--models", MODELS, "--gpus", GPUS, "--slo", "2,60"], "a duration with its unit"),
        (["--models", MODELS, "--gpus", GPUS, "--workload", "3"], "REQ_PER_S x INPUT+OUTPUT"),
        (["--gpus", GPUS], "--models is missing, and there is no terminal to ask on"),
        (["--vllm", "http://127.0.0.1:9", "--gpus", GPUS], "no model list"),
        (["--models", MODELS, "--prometheus", "http://prom"], "a value only with --vllm"),
    ],
)
def test_an_invalid_or_missing_answer_writes_nothing(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shoal.yaml"
    assert main(["config", "init", "--out", str(path), *options]) == 2
    assert words in capsys.readouterr().err
    assert not path.exists()


def test_a_cluster_names_the_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeView("a", LABELS, devices={"nvidia.com/gpu": 4})
    text = pools_yaml(found_pools([node]))
    monkeypatch.setattr(config, "regions_of_cluster", lambda _kubeconfig, _context: text)
    path = tmp_path / "shoal.yaml"
    assert main(["config", "init", "--out", str(path), "--models", MODELS, "--from-cluster"]) == 0
    found = load_config(path)
    assert found.kubernetes["cluster/g6/owned"].mode == "observe"
    assert [service.model for service in found.cluster.services] == ["chat"]


@pytest.mark.parametrize(
    ("resource", "why"),
    [("google.com/tpu", "instance-type=g6: the catalogue does not"),
     ("rdma/ib", "no node of the cluster has GPUs")],
)  # fmt: skip
def test_a_cluster_without_usable_gpus_says_why_and_writes_nothing(
    resource: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    text = pools_yaml(found_pools([NodeView("a", LABELS, devices={resource: 4})]))
    done = subprocess.CompletedProcess([], 0, stdout=text, stderr="")
    monkeypatch.setattr(kubernetes.subprocess, "run", lambda *_words, **_more: done)
    path = tmp_path / "shoal.yaml"
    assert main(["config", "init", "--out", str(path), "--models", MODELS, "--from-cluster"]) == 2
    assert why in capsys.readouterr().err
    assert not path.exists()


def test_a_cluster_that_cannot_be_read_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, missing = tmp_path / "shoal.yaml", tmp_path / "none"
    options = ["--from-cluster", "--kubeconfig", str(missing)]
    assert main(["config", "init", "--out", str(path), "--models", MODELS, *options]) == 2
    said = capsys.readouterr().err
    assert "--from-cluster: " in said and str(missing) in said
    assert not path.exists()


def test_an_existing_file_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text("mine")
    assert main(["config", "init", "--out", str(path), "--models", MODELS, "--gpus", GPUS]) == 2
    assert path.read_text() == "mine" and "exists" in capsys.readouterr().err


def test_check_names_the_fault_of_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    assert main(["config", "init", "--out", str(good), "--models", MODELS, "--gpus", GPUS]) == 0
    bad.write_text(good.read_text().replace("ttft: 2s", "ttft: 2"))
    capsys.readouterr()
    assert main(["config", "check", str(good), str(bad), "--json"]) == 2
    first, second = json.loads(capsys.readouterr().out)
    assert (first["ok"], first["models"]) == (True, 1)
    assert not second["ok"] and "models.chat.slo.ttft" in second["error"]


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert "regions" in json.loads(capsys.readouterr().out)["required"]
