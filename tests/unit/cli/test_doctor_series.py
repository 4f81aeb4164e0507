"""`shoal doctor` says, for each model and name, which series Prometheus has and which not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from streams.cli.doctor_series import of_series
from streams.cli.finding import Finding
from streams.files.shoal_yaml import load_config
from streams.ports.metric_servers import LATELY, MARK, RUNNING, Ask

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
_NAME = re.compile(r'model_name="([^"]*)"')


def prometheus(present: dict[str, float | None], samples: int = 20, servers: int = 3) -> Ask:
    """A Prometheus with vLLM servers of these names. Values: requests/s, None = too few samples."""

    def one(value: float, **labels: str) -> dict[str, Any]:
        return {"metric": labels, "value": [0, str(value)]}

    def ask(query: str) -> list[dict[str, Any]]:
        if query.startswith("count by (model_name)"):
            return [one(1, model_name=name) for name in present]
        match = _NAME.search(query)
        if match is None:
            return [one(9.5)] if query == "mine" else []
        if match[1] not in present:
            return []
        if LATELY in query:
            seen = {MARK: RUNNING}
            return [one(1, instance=f"10.0.0.{n}:8000", **seen) for n in range(servers)]
        if query.startswith("max("):
            return [one(samples)]
        rate = present[match[1]]
        return [] if rate is None else [one(rate)]

    return ask


def findings(folder: Path, asks: dict[str, Ask], keys: str = "demand: vllm") -> list[Finding]:
    path = folder / "shoal.yaml"
    path.write_text(
        "prometheus: {main: 'http://127.0.0.1:9'}\n"
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        f"models: {{mini: {{source: {LLAMA}, slo: {{ttft: 2s, tpot: 100ms}}, {keys}}}}}\n"
    )
    return list(of_series(load_config(path), asks))


def test_the_rate_of_each_name_is_shown_and_names_without_series_too(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, {"main": prometheus({LLAMA: 12.0, "foreign": 99.0})})
    assert found == Finding(
        True,
        "demand of mini",
        '12 req/s (Prometheus main, model_name "mini": no such series; '
        f'Prometheus main, model_name "{LLAMA}": 12 req/s)',
    )


def test_zero_is_not_a_missing_series(tmp_path: Path) -> None:
    (idle,) = findings(tmp_path, {"main": prometheus({LLAMA: 0.0})})
    assert idle.ok and idle.state.startswith("0 req/s (")
    (gone,) = findings(tmp_path, {"main": prometheus({})})
    assert not gone.ok and gone.state.startswith("unknown, not 0 (")
    assert gone.remedy.startswith("no vLLM server is scraped")


def test_a_similar_name_is_proposed(tmp_path: Path) -> None:
    """Mirrors and lower-case names of the same checkpoint come first."""
    mirror = "unsloth/llama-3.1-8b-instruct"
    (found,) = findings(tmp_path, {"main": prometheus({mirror: 1.0, "qwen": 1.0})})
    assert f'there are: "{mirror}" and 1 more' in found.state
    assert found.remedy.startswith(f"set models.mini.served_as: {mirror} in ")
    (own,) = findings(tmp_path, {"main": prometheus({LLAMA: 1.0})}, "demand: vllm, served_as: x")
    assert own.remedy.startswith(f"set models.mini.served_as: {LLAMA} in ")
    (far,) = findings(tmp_path, {"main": prometheus({"qwen": 1.0})})
    assert 'there are: "qwen"' in far.state
    assert far.remedy.endswith("to the name that vLLM serves")


def test_few_samples_are_named(tmp_path: Path) -> None:
    (slow,) = findings(tmp_path, {"main": prometheus({LLAMA: 2.0}, samples=5)})
    assert slow.ok and "about 60 s between scrapes" in slow.state
    (new,) = findings(tmp_path, {"main": prometheus({LLAMA: None}, samples=1)})
    assert not new.ok and "fewer than two samples in five minutes" in new.state


def test_a_custom_query_is_shown_with_its_answer(tmp_path: Path) -> None:
    (good,) = findings(tmp_path, {"main": prometheus({})}, "demand: mine")
    assert good == Finding(
        True, "demand of mini", "9.5 req/s (Prometheus main: 9.5 req/s) for mine"
    )
    (bad,) = findings(tmp_path, {"main": prometheus({})}, "demand: yours")
    assert bad.state == "unknown, not 0 (Prometheus main: empty) for yours"
    assert bad.remedy.startswith("correct models.mini.demand in ")


def test_servers_are_counted_with_a_custom_query_too(tmp_path: Path) -> None:
    keys = "demand: mine, unmanaged: {pool: us/l4/on-demand}"
    _, servers = findings(tmp_path, {"main": prometheus({LLAMA: 1.0})}, keys)
    assert servers.ok and servers.what == "servers of mini"
    assert servers.state.startswith("3 vLLM servers (")


def test_an_error_is_not_a_missing_series(tmp_path: Path) -> None:
    """The other Prometheus answers, so the demand is partly known, which is a fault too."""

    def broken(_: str) -> list[dict[str, Any]]:
        raise ConnectionError("http://ann:hush@x: refused\nmore")

    (found,) = findings(tmp_path, {"main": prometheus({LLAMA: 2.0}), "eu": broken})
    assert not found.ok and "http://x: refused" in found.state
    assert "more" not in found.state and "hush" not in found.state
    (found,) = findings(tmp_path, {"eu": broken})
    assert found.state.startswith("unknown (")


def test_engines_of_shoal_must_be_among_the_names(tmp_path: Path) -> None:
    keys = f"demand: vllm, mode: act, served_as: {LLAMA}"
    _, own = findings(tmp_path, {"main": prometheus({LLAMA: 1.0})}, keys)
    assert not own.ok and own.remedy.startswith("add mini to models.mini.served_as in ")


@pytest.mark.parametrize("asks", [{}, {"main": prometheus({})}])
def test_a_model_without_prometheus_is_not_checked(tmp_path: Path, asks: dict[str, Ask]) -> None:
    assert findings(tmp_path, asks, "priority: 1") == []
