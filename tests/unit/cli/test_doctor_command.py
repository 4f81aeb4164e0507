"""`shoal doctor` names each missing item, its place, and how to fix it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streams.cli.doctor import of_file, of_status
from streams.cli.main import main
from streams.files.user_errors import UserError

MODEL: dict[str, Any] = {"model": "chat", "level": "ok", "word": "steady", "remedy": ""}
STATUS: dict[str, Any] = {
    "controller": "ctl-1",
    "leads": True,
    "leader": "ctl-1",
    "tick_age_s": 0.4,
    "held": {},
    "supply_age_s": {"prices": {}, "availability": {}},
    "models": [MODEL],
}


def test_a_healthy_controller_gets_no_finding() -> None:
    assert all(one.ok for one in of_status(STATUS))


@pytest.mark.parametrize(
    ("change", "words", "mend"),
    [
        ({"tick_age_s": 40.0}, "last decision 40 s ago", "restart it"),
        ({"leads": False, "leader": ""}, "no leader is known", "another controller"),
        (
            {"supply_age_s": {"prices": {"us/l4/spot": 4000.0}, "availability": {}}},
            "67 min old",
            "shoal feed prices",
        ),
        ({"lag_ms": {"status": 42_000}}, "42 s behind", "more CPU"),
        ({"window_workers_late_s": 42.0}, "absent for 42 s", "shoal windows"),
        ({"refused": {"mini": "service mini:1: no"}}, "mini:1: no", "shoal apply"),
        (
            {"models": [{**MODEL, "level": "at_risk", "word": "short", "remedy": "shoal explain"}]},
            "short",
            "shoal explain",
        ),
    ],
)
def test_each_fault_is_named_with_its_fix(change: dict[str, Any], words: str, mend: str) -> None:
    (bad,) = [one for one in of_status({**STATUS, **change}) if not one.ok]
    assert words in bad.state and mend in bad.remedy


def test_executors_of_another_version_are_named() -> None:
    mixed = {"release": "0.2.0", "other_releases": {"ex-1": "0.1.0", "ex-2": ""}}
    found = {one.what: one for one in of_status({**STATUS, **mixed})}
    assert found["executor ex-1"].ok
    assert found["executor ex-1"].state == "runs Shoal 0.1.0, the controller 0.2.0"
    assert "unknown version" in found["executor ex-2"].state


def test_a_pause_is_shown_with_the_command_that_ends_it() -> None:
    found = list(of_status({**STATUS, "held": {"*/pause": "paused by ann: drill"}}))
    assert any("shoal resume --all" in one.remedy for one in found)


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    token, file = tmp_path / "token", tmp_path / "shoal.yaml"
    file.write_text(
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        "models: {m: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}}}\n"
        f"prometheus: {{main: {{url: 'http://127.0.0.1:9', token_file: {token}}}}}\n"
    )
    (bad,) = [one for one in of_file(file) if not one.ok]
    assert bad.what == "prometheus main" and str(token) in bad.state


@pytest.mark.parametrize("key", ["demand: vllm", "unmanaged: {pool: us/l4/on-demand}"])
def test_a_prometheus_that_a_model_needs_but_the_file_lacks_is_named(
    key: str, tmp_path: Path
) -> None:
    file = tmp_path / "shoal.yaml"
    file.write_text(
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        f"models: {{m: {{source: meta-llama/Llama-3.1-8B, slo: {{ttft: 2s, tpot: 1s}}, {key}}}}}\n"
    )
    (bad,) = [one for one in of_file(file) if not one.ok]
    name = key.partition(":")[0]
    assert bad.state.startswith(f"{file}: models.m.{name}: no address under prometheus")
    assert bad.remedy == f"add prometheus: {{name: URL}} to {file}"


def test_a_password_in_an_address_is_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "shoal.yaml"
    file.write_text(
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        "models: {m: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}}}\n"
        "prometheus: {main: 'http://ann:hush@127.0.0.1:9'}\n"
    )
    (bad,) = [one for one in of_file(file) if not one.ok]
    assert "http://127.0.0.1:9 does not answer" in bad.state and "hush" not in bad.state
    file.write_text(file.read_text().replace(":9'", ":x'"))
    with pytest.raises(UserError, match=r"main: 'http://127\.0\.0\.1:x' is not allowed"):
        list(of_file(file))


@pytest.mark.parametrize(
    ("kafka", "said"),
    [
        ("kafka://127.0.0.1:9", "Kafka at 127.0.0.1:9 cannot be used: connection refused"),
        (
            "kafka://me:S3cret@h:9092",
            "'h:9092' is not allowed; allowed: kafka://HOST:PORT or HOST:PORT",
        ),
        ("myhost", "'myhost' is not allowed; allowed: kafka://HOST:PORT or HOST:PORT"),
    ],
)
def test_doctor_reads_the_broker_address_as_the_controller_does(
    kafka: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "shoal.yaml"
    file.write_text(
        f"kafka: {kafka}\n"
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        "models: {m: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}}}\n"
    )
    (bad,) = [one for one in of_file(file) if not one.ok]
    assert (bad.what, bad.state) == ("kafka", said)


def test_without_a_controller_the_command_that_starts_one_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shoal.yaml"
    file.write_text(
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        "models: {m: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}}}\n"
    )
    assert main(["doctor", "--config", str(file), "--url", "http://127.0.0.1:9"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "File" and shown[1].startswith("  ok   ")
    assert shown[shown.index("Controller") + 1].startswith("  FIX  controller  --url")
    assert "remedy: start one with shoal controller" in "\n".join(shown)
    assert shown[-1] == "3 checks, 1 fault"
    width = max(len(line) for line in shown if str(file) not in line)
    assert width <= 80


def test_a_plan_with_the_facts_of_another_model_is_reported(tmp_path: Path) -> None:
    """A misspelt name may look like a fine-tune, so the model is planned and `shoal doctor` reports
    it.
    """
    file = tmp_path / "shoal.yaml"
    file.write_text(
        "regions: {us: {l4: {gpu: L4, max: 4, price: 1.0}}}\n"
        "models: {m: {source: meta-llama/Llama-3.1-8B-Instruc, slo: {ttft: 2s, tpot: 100ms}}}\n"
    )
    (said,) = [one.state for one in of_file(file) if one.what == "source of m"]
    assert said == (
        "meta-llama/Llama-3.1-8B-Instruc is not in the catalogue; planned with the facts of "
        "meta-llama/Llama-3.1-8B"
    )


def test_records_with_undeclared_names_are_counted() -> None:
    """These records are harmless, but their names may be misspelt."""
    found = list(of_status({**STATUS, "undeclared": {"telemetry": 20_000}}))
    (one,) = [one for one in found if one.what == "telemetry"]
    assert one.ok and "20,000 records ignored" in one.state.replace("20000", "20,000")
