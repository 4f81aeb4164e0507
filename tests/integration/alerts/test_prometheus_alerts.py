"""A trial next to a team's existing servers, which are OpenAI-compatible and not started by Shoal.

The team has a standard Prometheus and Alertmanager, a short shoal.yaml, and no Kafka. The
controller plans and writes nothing. An alert on the engines' own metrics leads to a plan within
seconds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from streams.tools.up.host_resources import free_port
from tests.integration.child_processes import end

DEPLOY = Path("deploy/prometheus")
CONFIG = """\
prometheus: {here: http://127.0.0.1:PROM}
regions:
  us-east:
    l40s: {gpu: L40S, per_node: 4, max: 8, price: 7.20, spot_price: 2.90}
  eu-west:
    l4: {gpu: L4, per_node: 1, max: 20, price: 0.85, spot_price: 0.32}
engines: {fp8: {args: [--quantization=fp8]}}
models:
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    engine: fp8
    slo: {ttft: 1s, tpot: 60ms}
    workload: {input: 1000, output: 200}
    demand: 'sum(rate(vllm:request_success_total{model_name="mini"}[10s]))'
    unmanaged: {pool: us-east/l40s/on-demand}
"""


class Engines:
    """Three servers with vLLM's metrics. waiting: number of waiting requests that each server
    reports.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.ports = [free_port() for _ in range(3)]
        self._began = time.monotonic()

    async def metrics(self, _: web.Request) -> web.Response:
        served = int((time.monotonic() - self._began) * 4)
        label = '{model_name="mini"}'
        return web.Response(
            text=f"vllm:request_success_total{label} {served}\n"
            f"vllm:num_requests_running{label} 4\n"
            f"vllm:num_requests_waiting{label} {self.waiting}\n"
        )

    async def start(self) -> list[web.AppRunner]:
        runners = []
        for port in self.ports:
            app = web.Application()
            app.add_routes([web.get("/metrics", self.metrics)])
            runner = web.AppRunner(app, access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", port).start()
            runners.append(runner)
        return runners


@pytest.fixture
def processes() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A function that starts processes; they and their children are ended afterwards."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*argv: object, log: Path) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            made = subprocess.Popen(
                [str(arg) for arg in argv], stdout=out, stderr=out, start_new_session=True
            )
        running.append(made)
        return made

    yield start
    for process in reversed(running):
        process.send_signal(signal.SIGTERM)
    for process in running:
        end(process, 5.0)


def status(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{url}/v1/status", timeout=2.0) as answer:  # noqa: S310
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except OSError:
        return {"models": [], "plans": []}


async def until(check: Callable[[], Any], limit_s: float) -> float:
    """Wait until `check` returns a true value. Returns the real seconds."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if await asyncio.to_thread(check):
            return time.monotonic() - began
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {limit_s:g} s")


def configure(folder: Path, engines: Engines, prom: int, manager: int, http: int) -> None:
    """Write the files of deploy/, with the ports of this test."""
    token = folder / "token"
    token.write_text("a-token-of-this-test")
    for rules in ("shoal-rules.yml", "shoal-slo-rules.yml"):
        (folder / rules).write_text((DEPLOY / rules).read_text())
    text = (DEPLOY / "prometheus.yml").read_text()
    text = text.replace("127.0.0.1:9093", f"127.0.0.1:{manager}")
    text = text.replace("127.0.0.1:8702", f"127.0.0.1:{http}")
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in engines.ports)
    (folder / "prometheus.yml").write_text(text.replace('"127.0.0.1:8000"', targets))
    text = (DEPLOY / "alertmanager.yml").read_text()
    text = text.replace("127.0.0.1:8702", f"127.0.0.1:{http}")
    (folder / "alertmanager.yml").write_text(text.replace("/etc/shoal/alert-token", str(token)))
    (folder / "shoal.yaml").write_text(CONFIG.replace("PROM", str(prom)))


@pytest.mark.slow
async def test_an_alert_condition_leads_to_a_plan_and_no_record_is_written(
    binaries: Path, processes: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    assert len(CONFIG.splitlines()) <= 25
    engines = Engines()
    runners = await engines.start()
    prom, manager, http = free_port(), free_port(), free_port()
    configure(tmp_path, engines, prom, manager, http)
    processes(
        binaries / "prometheus",
        f"--config.file={tmp_path}/prometheus.yml",
        f"--storage.tsdb.path={tmp_path}/data",
        f"--web.listen-address=127.0.0.1:{prom}",
        log=tmp_path / "prometheus.log",
    )
    processes(
        binaries / "prometheus-alertmanager",
        f"--config.file={tmp_path}/alertmanager.yml",
        f"--storage.path={tmp_path}/alerts",
        f"--web.listen-address=127.0.0.1:{manager}",
        "--cluster.listen-address=",
        log=tmp_path / "alertmanager.log",
    )
    controller = [sys.executable, "-m", "streams.cli.main", "controller"]
    controller += ["--config", str(tmp_path / "shoal.yaml"), "--http", f"127.0.0.1:{http}"]
    controller += ["--record", str(tmp_path / "log"), "--id", "trial"]
    controller += ["--alert-token-file", str(tmp_path / "token")]
    processes(*controller, log=tmp_path / "controller.log")
    url = f"http://127.0.0.1:{http}"

    def planned() -> bool:
        models = status(url)["models"]
        return bool(models and models[0]["planned"] and models[0]["demand_req_per_s"])

    first_plan_s = await until(planned, 60.0)
    await until(lambda: status(url)["models"][0]["demand_req_per_s"] > 6.0, 40.0)
    await until(lambda: status(url)["models"][0]["unmanaged"] == 3, 20.0)
    assert status(url)["models"][0]["ready"] == 3, "servers that others started count as ready"
    engines.waiting = 50

    def alerted() -> list[str]:
        plans = status(url)["plans"]
        return [why for plan in plans for why in plan["reasons"] if "RequestsWaiting" in why]

    reached_s = await until(alerted, 20.0)
    print(f"first plan after {first_plan_s:.1f} s, condition to plan {reached_s:.1f} s")
    # One server in three may have been scraped since.
    assert "alert RequestsWaiting (mini: engines: 12 running, " in alerted()[0]
    assert reached_s <= 3.0
    assert status(url)["writes"] == 0
    for runner in runners:
        await runner.cleanup()
