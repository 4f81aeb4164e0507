"""Every query of the Grafana dashboards gives data on a Prometheus that scrapes `shoal up`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from deploy.grafana.dashboards import main, queries
from streams.cli.main import main as shoal
from streams.tools.up.host_resources import free_port
from tests.integration.alerts.prometheus_server import running_prometheus

_PATIENCE_S = 150.0
_SCRAPES = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: controller
    static_configs: [{{targets: ["127.0.0.1:{http}"]}}]
  - job_name: gateway
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def series(url: str, query: str) -> int:
    """Number of series that the Prometheus at `url` returns."""
    asked = urllib.parse.urlencode({"query": query.replace("$model", "chat")})
    with urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=5) as answer:  # noqa: S310
        found = json.load(answer)
    assert found["status"] == "success", query
    return len(found["data"]["result"])


def test_the_files_are_those_of_the_code() -> None:
    assert main(["--check"]) == 0


@pytest.mark.slow
def test_every_query_gives_data(binaries: Path, tmp_path: Path) -> None:
    http, port = free_port(), free_port()
    command = [
        sys.executable, "-m", "streams.cli.main", "up", "--for", "200", "--speed", "10",
        "--http", f"127.0.0.1:{http}", "--port", str(port),
    ]  # fmt: skip
    prices = tmp_path / "prices.yaml"
    prices.write_text("eu-west/l4/spot: 0.3\n")
    config = _SCRAPES.format(http=http, port=port)
    log = (tmp_path / "up.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with running_prometheus(binaries, tmp_path, config=config) as url:
            left = set(queries())
            until_s = time.monotonic() + _PATIENCE_S
            while left and time.monotonic() < until_s and process.poll() is None:
                if any("supply" in query for query in left):
                    at = f"http://127.0.0.1:{http}"
                    shoal(["feed", "prices", "--from", str(prices), "--url", at])
                time.sleep(2.0)
                left = {query for query in left if not series(url, query)}
            assert not left, (left, (tmp_path / "up.log").read_text()[-500:])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
