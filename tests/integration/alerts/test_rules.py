"""Prometheus rules fire and resolve, each in a test of promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

DEPLOY = Path("deploy/prometheus")


def test_every_rule_fires_and_resolves(binaries: Path) -> None:
    done = subprocess.run(
        [binaries / "promtool", "test", "rules", "shoal-rules-test.yml"],
        cwd=DEPLOY, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_test() -> None:
    """A test of a rule has a moment at which the alert fires, and a later one without it."""
    groups = yaml.safe_load((DEPLOY / "shoal-rules.yml").read_text())["groups"]
    rules = {rule["alert"] for group in groups for rule in group["rules"]}
    tests = yaml.safe_load((DEPLOY / "shoal-rules-test.yml").read_text())["tests"]
    fires, ends = set(), set()
    for test in tests:
        cases = test["alert_rule_test"]
        fires |= {case["alertname"] for case in cases if case.get("exp_alerts")}
        ends |= {cases[-1]["alertname"]} if not cases[-1].get("exp_alerts") else set()
    assert rules == fires == ends
