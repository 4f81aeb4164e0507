"""`shoal doctor` on a real Prometheus that scrapes the pages of several versions of vLLM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from streams.cli.doctor import of_file
from streams.cli.finding import Finding
from tests.hang_limit import HANG_S
from tests.integration.alerts.prometheus_server import running_prometheus

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
QWEN = "Qwen/Qwen3-8B"
BEGIN_S = time.monotonic()

OLD = """\
# HELP vllm:cache_config_info information of cache_config
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{{block_size="16",gpu_memory_utilization="0.9"}} 1.0
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="{name}"}} 4.0
# HELP vllm:num_requests_swapped Number of requests swapped to CPU.
# TYPE vllm:num_requests_swapped gauge
vllm:num_requests_swapped{{model_name="{name}"}} 0.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="{name}"}} 1.0
# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{{model_name="{name}"}} 0.25
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{finished_reason="stop",model_name="{name}"}} {count}
# HELP vllm:time_per_output_token_seconds Histogram of time per output token in seconds.
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{{le="0.01",model_name="{name}"}} 7.0
vllm:time_per_output_token_seconds_bucket{{le="+Inf",model_name="{name}"}} 9.0
vllm:time_per_output_token_seconds_count{{model_name="{name}"}} 9.0
vllm:time_per_output_token_seconds_sum{{model_name="{name}"}} 0.1
"""
"""A page in the form of vLLM 0.6: no label `engine`, no `_created`."""

_ENGINE = """\
vllm:num_requests_running{{engine="{engine}",model_name="{name}"}} 4.0
vllm:num_requests_waiting{{engine="{engine}",model_name="{name}"}} 0.0
vllm:kv_cache_usage_perc{{engine="{engine}",model_name="{name}"}} 0.25
vllm:request_success_total{{engine="{engine}",finished_reason="stop",model_name="{name}"}} {count}
vllm:request_success_total{{engine="{engine}",finished_reason="length",model_name="{name}"}} 3.0
vllm:request_success_created{{engine="{engine}",finished_reason="stop",model_name="{name}"}} 1.7e+09
vllm:inter_token_latency_seconds_bucket{{engine="{engine}",le="0.01",model_name="{name}"}} 7.0
vllm:inter_token_latency_seconds_count{{engine="{engine}",model_name="{name}"}} 9.0
"""
NEW = (
    _ENGINE
    + _ENGINE.replace("{engine}", "1")
    + 'vllm:lora_requests_info{{running_lora_adapters="sql",waiting_lora_adapters=""}} 1\n'
)
"""A page in the form of the current version, with two data-parallel engines and an adapter."""


def page(form: str, name: str) -> str:
    """A page whose server has finished five requests per second since the start."""
    return form.format(name=name, engine="0", count=5.0 * (time.monotonic() - BEGIN_S))


@pytest.fixture(scope="module")
def server(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pages = {"/old": (OLD, LLAMA), "/new": (NEW, "chat"), "/foreign": (NEW, QWEN)}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page(*pages[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    vllm = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=vllm.serve_forever)
    thread.start()
    jobs = "".join(
        f"  - job_name: {job}\n    metrics_path: {path}\n    static_configs:\n"
        f"      - targets: ['127.0.0.1:{vllm.server_address[1]}']\n"
        f"        labels: {{namespace: llm, pod: {path[1:]}-0}}\n"
        for job, path in (("a", "/old"), ("b", "/new"), ("copy-of-b", "/new"), ("c", "/foreign"))
    )
    config = f"global: {{scrape_interval: 1s}}\nscrape_configs:\n{jobs}"
    try:
        folder = tmp_path_factory.mktemp("pages")
        with running_prometheus(binaries, folder, config=config) as url:
            yield url
    finally:
        vllm.shutdown()
        thread.join()
        vllm.server_close()


def doctor(url: str, folder: Path, model: str) -> dict[str, Finding]:
    """The findings on the model of this YAML, by subject."""
    path = folder / "shoal.yaml"
    path.write_text(
        f"prometheus: {{main: '{url}'}}\nregions: {{us: {{l4: {{gpu: L4, max: 4, price: 1.0}}}}}}\n"
        f"models: {{chat: {{source: {LLAMA}, slo: {{ttft: 2s, tpot: 100ms}}, demand: vllm, "
        f"unmanaged: {{pool: us/l4/on-demand}}{model}}}}}\n"
    )
    return {one.what: one for one in of_file(path)}


def eventually(made: Callable[[], dict[str, Finding]]) -> dict[str, Finding]:
    """The findings once Prometheus has scraped every page a few times."""
    deadline_s = time.monotonic() + HANG_S
    while time.monotonic() < deadline_s:
        found = made()
        if found["demand of chat"].ok:
            return found
        time.sleep(0.5)
    return made()


def test_old_and_new_pages_are_read_under_both_names(server: str, tmp_path: Path) -> None:
    """Model `chat` is served under its own name on a current version, and under its Hugging Face
    name on an old one. A second job that scrapes a server adds nothing. Neither does a foreign
    model.
    """
    found = eventually(lambda: doctor(server, tmp_path, ""))
    demand, servers = found["demand of chat"], found["servers of chat"]
    assert demand.ok and "no such series" not in demand.state, demand
    assert servers.state.startswith("3 vLLM servers ("), servers
    other = f'Prometheus main, model_name "{LLAMA}": 1 vLLM server'
    assert f'"chat": 2 vLLM servers; {other}' in servers.state


def test_a_wrong_name_is_unknown_and_the_right_one_is_proposed(server: str, tmp_path: Path) -> None:
    eventually(lambda: doctor(server, tmp_path, ""))
    found = doctor(server, tmp_path, ", served_as: qwen3-8b")
    demand = found["demand of chat"]
    assert not demand.ok and demand.state.startswith("unknown, not 0 (")
    assert demand.remedy.startswith(f"set models.chat.served_as: {QWEN} in ")
    found = eventually(lambda: doctor(server, tmp_path, f", served_as: {QWEN}"))
    assert found["demand of chat"].ok
