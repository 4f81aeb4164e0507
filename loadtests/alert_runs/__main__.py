"""Each alert, in a real Prometheus that scrapes runs of `shoal up` in which its cause is made:
`python -m loadtests.alert_runs --binaries FOLDER [--run NAME ...] [--out FILE]`.

FOLDER: has prometheus (see deploy/prometheus/fetch.sh). Runs: the scenarios `outage`, `day` and
`spot-storm`; `faults`, in which nodes are lost, demand triples, processes are stopped, junk is sent
and the folder of decisions goes away; and `approval`, without an answer to proposals. A run plays
20 seconds in one, and the rules wait 20 times less. Rules about hours and days wait 480 times less,
so a day of them is an hour of the run. JSON keys:

    runs: {name: {alert: [{from_s, to_s}]}} with to_s null if the alert still fired at the end,
    never, endless: alerts that never fired, or never ended
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml
from aiokafka import AIOKafkaProducer

from loadtests.alert_runs.scaled_rules import alert_names, scaled
from loadtests.soak_scenario import repeated
from streams.tools.up.host_resources import free_port

_SPEED, _LONG = 20.0, 480.0
_FILES = {"shoal-rules.yml": _SPEED, "shoal-slo-rules.yml": _LONG}
_TOKEN = "alert-runs-0123456789"  # noqa: S105
_CONFIG = """\
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [shoal-rules.yml, shoal-slo-rules.yml]
scrape_configs:
  - job_name: processes
    file_sd_configs: [{files: [targets.json], refresh_interval: 1s}]
"""
_FLOOD, _LONG_PROMPTS = 150_000, 40
Act = Callable[["Run"], None]


class Run:
    """One `shoal up` and the Prometheus that scrapes it. spans: by alert, [begin, end] in real
    seconds of the run; end is None while the alert fires."""

    def __init__(self, binaries: Path, folder: Path, scenario: str | Path, *argv: str) -> None:
        self.folder = folder
        self.spans: dict[str, list[list[float | None]]] = {}
        self.http, self.port, self._prometheus = free_port(), free_port(), free_port()
        for name, factor in _FILES.items():
            (folder / name).write_text(yaml.safe_dump(scaled(name, factor), width=1000))
        (folder / "prometheus.yml").write_text(_CONFIG)
        (folder / "targets.json").write_text("[]")
        env = {**os.environ, "SHOAL_OPERATOR_TOKEN": _TOKEN}
        with (folder / "up.log").open("wb") as log:
            self._server = subprocess.Popen(
                [binaries / "prometheus", f"--config.file={folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={folder / 'data'}",
                 f"--web.listen-address=127.0.0.1:{self._prometheus}"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self.up = subprocess.Popen(
                [sys.executable, "-m", "streams.cli.entry", "up", "--scenario", str(scenario),
                 "--speed", str(_SPEED), "--http", f"127.0.0.1:{self.http}",
                 "--port", str(self.port),
                 "--record", str(folder / "record"), *argv],
                stdout=log, stderr=log, env=env,
            )  # fmt: skip

    def follow(self, seconds: float, acts: dict[float, Act]) -> None:
        """Note alerts for `seconds`. acts: what to do at a second after the first request."""
        waiting = sorted(acts.items())
        self._await_leader()
        began_s = time.monotonic()
        while (now_s := time.monotonic() - began_s) < seconds and self.up.poll() is None:
            self._write_targets()
            self._note(now_s)
            while waiting and waiting[0][0] <= now_s:
                threading.Thread(target=waiting.pop(0)[1], args=(self,), daemon=True).start()
            time.sleep(1.0)
        if self.up.poll():  # 0: the whole trace was played
            text = (self.folder / "up.log").read_text(errors="replace")
            raise RuntimeError(f"shoal up ended: {text[-1500:]}")

    def close(self) -> None:
        """End all processes."""
        for process in self.processes("streams.controller", "executors.gateway"):
            process.send_signal(signal.SIGCONT)
        self.up.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.up.wait(60.0)
        for running in (self.up, self._server):
            running.kill()
            running.wait()

    def processes(self, *modules: str) -> list[psutil.Process]:
        """The processes of the run that execute one of these modules."""
        found = list[psutil.Process]()
        with contextlib.suppress(psutil.Error):
            for one in psutil.Process(self.up.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found += [one] if set(modules) & set(one.cmdline()) else []
        return found

    def status(self) -> dict[str, Any]:
        """The controller's /v1/status."""
        url = f"http://127.0.0.1:{self.http}/v1/status"
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    # -- inside -------------------------------------------------------------------------------

    def _await_leader(self) -> None:
        until_s = time.monotonic() + 300.0
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError, ValueError):
                if self.status().get("models"):
                    return
            if self.up.poll() is not None:
                break
            time.sleep(0.5)
        raise TimeoutError((self.folder / "up.log").read_text(errors="replace")[-1000:])

    def _write_targets(self) -> None:
        """All ports on which processes of the run listen. Some do not serve metrics."""
        ports = set[int]()
        for process in self.processes("streams.controller", "executors.gateway", "executors.node",
                                      "executors.engines.simulated"):  # fmt: skip
            with contextlib.suppress(psutil.Error):
                found = process.net_connections(kind="tcp")
                ports |= {c.laddr.port for c in found if c.status == psutil.CONN_LISTEN}
        targets = [{"targets": [f"127.0.0.1:{port}" for port in sorted(ports)]}]
        made = self.folder / "targets.tmp"
        made.write_text(json.dumps(targets))
        made.rename(self.folder / "targets.json")

    def _note(self, now_s: float) -> None:
        url = f"http://127.0.0.1:{self._prometheus}/api/v1/alerts"
        try:
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                found = json.load(answer)["data"]["alerts"]
        except OSError:
            return
        firing = {one["labels"]["alertname"] for one in found if one["state"] == "firing"}
        for name in firing:
            spans = self.spans.setdefault(name, [])
            if not spans or spans[-1][1] is not None:
                spans.append([round(now_s, 1), None])
        for name, spans in self.spans.items():
            if name not in firing and spans[-1][1] is None:
                spans[-1][1] = round(now_s, 1)


def _send(module: str, number: int) -> Act:
    def act(run: Run) -> None:
        for process in run.processes(module):
            process.send_signal(number)

    return act


def _stutter(run: Run) -> None:
    """Give the controller a tenth of the time for 25 s, less than its lease at a time."""
    (controller,) = run.processes("streams.controller")
    until_s = time.monotonic() + 25.0
    while time.monotonic() < until_s:
        controller.suspend()
        time.sleep(1.8)
        controller.resume()
        time.sleep(0.2)


def _flood(run: Run) -> None:
    """Send records of no known form, more than the controller reads in a few seconds."""
    (controller,) = run.processes("streams.controller")
    words = controller.cmdline()
    options = dict(pairwise(words))
    asyncio.run(_send_records(options["--broker"], f"{options['--prefix']}telemetry"))


async def _send_records(bootstrap: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=20) as producer:
        for _ in range(_FLOOD // 1000):
            sent = [await producer.send(topic, b"{}") for _ in range(1000)]
            await asyncio.gather(*sent)


def _long_prompts(run: Run) -> None:
    """Send prompts that fill the KV caches of one model."""
    url = f"http://127.0.0.1:{run.port}/v1/completions"
    body = {"model": "mini", "prompt": "a " * 30_000, "max_tokens": 3000, "ignore_eos": True}

    async def send() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60.0)) as client:
            sent = (client.post(url, json=body) for _ in range(_LONG_PROMPTS))
            await asyncio.gather(*sent, return_exceptions=True)

    asyncio.run(send())


def _feed(run: Run) -> None:
    """Feed the price of one pool once."""
    prices = run.folder / "prices.yaml"
    prices.write_text("eu-west/l4/spot: 0.3\n")
    subprocess.run(
        [sys.executable, "-m", "streams.cli.entry", "feed", "prices", "--from", str(prices),
         "--url", f"http://127.0.0.1:{run.http}"],
        capture_output=True, timeout=60,
    )  # fmt: skip


def _lose_folder(run: Run) -> None:
    folder = run.folder / "record"
    folder.rename(run.folder / "away")
    folder.write_text("in the way")


def _return_folder(run: Run) -> None:
    (run.folder / "record").unlink()
    (run.folder / "away").rename(run.folder / "record")


def _approve(run: Run) -> None:
    env = {**os.environ, "SHOAL_OPERATOR_TOKEN": _TOKEN}
    for model in run.status()["models"]:
        if model["proposal"]:
            subprocess.run(
                [sys.executable, "-m", "streams.cli.entry", "approve", str(model["proposal"]),
                 "--url", f"http://127.0.0.1:{run.http}"],
                env=env, capture_output=True, timeout=60,
            )  # fmt: skip


_DEMO = Path(__file__).parents[2] / "streams" / "data" / "demo.yaml"
_POOLS = tuple(f"eu-west/{gpu}/{market}" for gpu in ("l40s", "l4")
               for market in ("on-demand", "spot"))  # fmt: skip


def _faults(folder: Path) -> Path:
    """A steady day with five minutes in which a region is lost, and three times the demand from
    minute 66 on."""
    path = repeated("calm", 8000.0, folder)
    found = yaml.safe_load(path.read_text())
    events: dict[str, Any] = {
        "surge": {"at": "66m", "kind": "demand", "factor": 3, "for": "15m"},
    }
    for k, pool in enumerate(_POOLS):
        events[f"lost-{k}"] = {"at": "8m", "kind": "node_loss", "pool": pool, "nodes": 16,
                               "for": "5m"}  # fmt: skip
        events[f"fails-{k}"] = {"at": "8m", "kind": "launch_failures", "pool": pool, "for": "5m"}
    path.write_text(yaml.safe_dump(found | {"events": events}, sort_keys=False))
    return path


def _approval(folder: Path) -> Path:
    """Mode approve: a price rises above the budget, and no proposal gets an answer."""
    path = repeated("calm", 4000.0, folder)
    config = yaml.safe_load(_DEMO.read_text())
    config |= {"mode": "approve"}
    config["policy"] |= {"budget": 12.0}
    (folder / "shoal.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    found = yaml.safe_load(path.read_text()) | {"config": "shoal.yaml"}
    found["events"] = {
        f"{name}-{k}": {"at": at, "kind": "price", "pool": pool, "price": price}
        for name, at, price in (("dear", "12m", 8.0), ("cheap", "32m", 0.8))
        for k, pool in enumerate(_POOLS)
    }
    path.write_text(yaml.safe_dump(found, sort_keys=False))
    return path


def _plan(folder: Path, name: str) -> tuple[str | Path, float, dict[float, Act]]:
    """Scenario, real seconds and acts of a run."""
    if name == "faults":
        acts: dict[float, Act] = {
            5.0: _feed,
            12.0: _long_prompts,
            70.0: _send("executors.gateway", signal.SIGSTOP),
            82.0: _send("executors.gateway", signal.SIGCONT),
            95.0: _send("streams.controller", signal.SIGSTOP),
            110.0: _send("streams.controller", signal.SIGCONT),
            130.0: _stutter,
            175.0: _flood,
            240.0: _lose_folder,
            300.0: _return_folder,
            320.0: _feed,
        }
        return _faults(folder), 370.0, acts
    if name == "approval":
        answers = (*range(2, 32, 3), *range(100, 140, 3))
        return _approval(folder), 160.0, dict.fromkeys(map(float, answers), _approve)
    return name, 120.0, {}


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 each alert of the runs' rules fired and ended, 1 one did not."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.alert_runs")
    parser.add_argument("--binaries", type=Path, required=True)
    every = ["outage", "day", "spot-storm", "faults", "approval"]
    parser.add_argument("--run", action="append", choices=every, help="default: all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    found: dict[str, Any] = {"runs": {}}
    for name in options.run or every:
        with tempfile.TemporaryDirectory(prefix="shoal-alerts-") as made:
            folder = Path(made)
            scenario, seconds, acts = _plan(folder, name)
            run = Run(options.binaries, folder, scenario)
            try:
                run.follow(seconds, acts)
            finally:
                run.close()
            spans = {alert: [{"from_s": a, "to_s": b} for a, b in spans]
                     for alert, spans in sorted(run.spans.items())}  # fmt: skip
            found["runs"][name] = spans
            print(name, json.dumps(spans), file=sys.stderr, flush=True)
            if options.out:
                shutil.copy(folder / "up.log", options.out.with_suffix(f".{name}.log"))
    names = [name for file in _FILES for name in alert_names(file)]
    fired = {alert for spans in found["runs"].values() for alert in spans}
    ended = {alert for spans in found["runs"].values() for alert, all_of in spans.items()
             if any(one["to_s"] is not None for one in all_of)}  # fmt: skip
    found |= {"never": sorted(set(names) - fired), "endless": sorted(fired - ended)}
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return int(bool(found["never"] or found["endless"]))


if __name__ == "__main__":
    sys.exit(main())
