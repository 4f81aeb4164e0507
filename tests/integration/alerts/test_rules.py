"""Prometheus rules fire and resolve, each in a test of promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

DEPLOY = Path("deploy/prometheus")


@pytest.mark.parametrize("rules", ["shoal-rules", "shoal-slo-rules"])
def test_every_rule_fires_and_resolves(binaries: Path, rules: str) -> None:
    done = subprocess.run(
        [binaries / "promtool", "test", "rules", f"{rules}-test.yml"],
        cwd=DEPLOY, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rules", ["shoal-rules", "shoal-slo-rules"])
def test_every_rule_has_a_test_and_a_runbook_section(rules: str) -> None:
    """A test of a rule has a moment at which the alert fires, and a later one without it. The link
    of an alert for people leads to a section of the page on alerts."""
    groups = yaml.safe_load((DEPLOY / f"{rules}.yml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    names = {rule["alert"] for rule in alerts}
    tests = yaml.safe_load((DEPLOY / f"{rules}-test.yml").read_text())["tests"]
    fires, ends = set(), set()
    for test in tests:
        cases = test["alert_rule_test"]
        fires |= {case["alertname"] for case in cases if case.get("exp_alerts")}
        ends |= {cases[-1]["alertname"]} if not cases[-1].get("exp_alerts") else set()
    assert names == fires and names <= ends
    page = Path("docs/how-to/alerts.md").read_text().splitlines()
    for rule in alerts:
        if rule["labels"].get("shoal") != "yes":
            link = rule["annotations"]["runbook_url"]
            assert link.endswith(f"/how-to/alerts.html#{rule['alert'].lower()}")
            assert f"### {rule['alert']}" in page
