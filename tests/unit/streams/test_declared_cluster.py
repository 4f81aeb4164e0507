"""The declaration in force: the file, and the records of `services` that override it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster, Mode
from streams.controller.declared_cluster import DeclaredCluster
from streams.files.shoal_yaml import Config, load_config
from streams.loop.control_state import ControlState
from topics.records import DeclaredService

SAMPLE = Path(__file__).parent.parent / "files" / "sample.yaml"
MINI = "{source: openai/gpt-oss-20b, slo: {ttft: 3s, tpot: 90ms}, min: 5}"
BROKEN = {
    "not YAML": "{",
    "unknown key": MINI.replace("min:", "mni:"),
    "wrong unit": MINI.replace("3s", "3 parsecs"),
    "unknown model": MINI.replace("gpt-oss-20b", "gpt-oss-21b"),
    "no mapping": "[1, 2]",
    "out of range": MINI.replace("min: 5", "utilization: 7"),
    "no such day": MINI.replace("min: 5", "min: 2024-13-45"),
    "no whole number": MINI.replace("min: 5", "min: !!int abc"),
    "no truth": MINI.replace("min: 5", "disaggregate: !!bool maybe"),
    "no time": MINI.replace("min: 5", "min: !!timestamp x"),
    "nothing of a number": MINI.replace("min: 5", "min: !!int ''"),
    "a number of 5,000 digits": MINI.replace("min: 5", f"min: {'9' * 5000}"),
    "a hexadecimal number of 5,000 digits": MINI.replace("min: 5", f"min: 0x{'f' * 5000}"),
    "more than a float holds": MINI.replace("min: 5", f"share: 0x{'f' * 400}"),
    "no home of that user": MINI.replace("openai/gpt-oss-20b", "~nosuchuser/x.json"),
    "no path": MINI.replace("openai/gpt-oss-20b", '"./a\\0b.json"'),
    "an alias": "{source: openai/gpt-oss-20b, slo: &s {ttft: 3s, tpot: 90ms}, min: *s}",
    "nested too deep": MINI.replace("min: 5", f"types: {'[' * 90}"),
    "beyond the controller's own window": MINI.replace("min: 5", "scale_in_after: 31m"),
}


@pytest.fixture
def config() -> Config:
    return load_config(SAMPLE, Mode.ACT)


def record(text: str = MINI, model: str = "mini", at_ms: int = 1) -> DeclaredService:
    return DeclaredService(model, text, at_ms, version=at_ms)


def withdrawal(at_ms: int) -> DeclaredService:
    return DeclaredService("mini", "", at_ms, version=at_ms, withdrawn=True)


def test_without_records_the_file_counts(config: Config) -> None:
    declared = DeclaredCluster(config, ControlState())
    assert declared() == config.cluster
    assert declared() is declared(), "nothing is read again unless a record came"


def test_a_record_overrides_the_file_and_gets_its_defaults(config: Config) -> None:
    """The record overrides one model. The declaration gets another content hash."""
    latest = ControlState()
    declared = DeclaredCluster(config, latest)
    latest.take(record(), 0)
    found = declared()
    mini, filed = found.service("mini"), config.cluster.service("mini")
    assert (mini.slo.ttft_ms, mini.min_instances) == (3000.0, 5)
    assert mini.spot_share == config.defaults.spot
    assert [s for s in found.services if s.model != "mini"] == [
        s for s in config.cluster.services if s.model != "mini"
    ]
    assert filed.min_instances != 5
    assert found.content_hash != config.cluster.content_hash
    assert declared() is found


def test_a_model_that_the_file_does_not_have_is_added(config: Config) -> None:
    latest = ControlState()
    latest.take(record(model="extra"), 0)
    services = DeclaredCluster(config, latest)().services
    assert [s.model for s in services] == [*[s.model for s in config.cluster.services], "extra"]


@pytest.mark.parametrize("case", BROKEN)
def test_a_bad_record_is_logged_once_and_the_last_good_one_stays(
    config: Config, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    latest = ControlState()
    declared = DeclaredCluster(config, latest)
    latest.take(record(), 0)
    good = declared()
    latest.take(record(BROKEN[case], at_ms=2), 1)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert declared().services == good.services
    assert len(caplog.records) == 1
    assert "service mini" in caplog.text
    assert (
        list(latest.declared.refused) == ["mini"] and latest.declared.refused["mini"] in caplog.text
    )
    latest.take(record(at_ms=3), 2)
    assert declared().services == good.services and not latest.declared.refused


def test_a_declaration_that_fails_a_trial_decision_is_refused(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error in the trial decision does not end the process."""
    tried: list[str] = []

    def fails(cluster: Cluster, now_ms: int) -> None:
        tried.extend(service.model for service in cluster.services)
        if cluster.services[0].min_instances == 7:
            raise ZeroDivisionError("by a floor of 7")

    monkeypatch.setattr("streams.controller.declared_cluster.check_decidable", fails)
    latest = ControlState()
    declared = DeclaredCluster(config, latest)
    latest.take(record(), 0)
    good = declared().services
    latest.take(record(MINI.replace("min: 5", "min: 7"), at_ms=2), 1)
    with caplog.at_level(logging.ERROR):
        assert declared().services == good
    assert tried == ["mini", "mini"]
    assert latest.declared.refused == {"mini": "ZeroDivisionError: by a floor of 7"}
    latest.take(withdrawal(3), 2)
    assert declared() and not latest.declared.refused, (
        "it is withdrawn, so nothing is wrong with it"
    )


def test_unmanaged_servers_can_be_declared_by_a_record(config: Config) -> None:
    pool = config.cluster.pools[0]
    text = MINI.replace("min: 5", f"unmanaged: {{pool: {pool.id}}}")
    latest = ControlState()
    latest.take(record(text), 0)
    assert DeclaredCluster(config, latest)().service("mini").unmanaged == f"mini:a1@{pool.id}"


def test_a_bad_name_is_refused_as_in_the_file(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    """Names become parts of ids, so the topic and the file have the same rules for names."""
    latest = ControlState()
    latest.take(record(model="a:b@c"), 0)
    assert DeclaredCluster(config, latest)().services == config.cluster.services
    assert "a:b@c" in caplog.text


def test_a_withdrawn_service_is_not_restored_by_a_bad_record(config: Config) -> None:
    """Neither does an older one, nor a tombstone."""
    latest = ControlState()
    declared = DeclaredCluster(config, latest)
    latest.take(record(), 0)
    assert declared().service("mini").min_instances == 5
    latest.drop("services", "mini")
    assert declared().service("mini").min_instances == 5, "a tombstone withdraws nothing"
    latest.take(withdrawal(2), 2)
    for old in (record(), record("{", at_ms=3)):
        assert "mini" not in [s.model for s in declared().services]
        assert declared().withdrawn == declared().withdrawn_in_file == ("mini",)
        latest.take(old, 3)
    assert "mini" not in [s.model for s in declared().services]
    latest.take(record(at_ms=4), 4)
    assert declared().service("mini").min_instances == 5
