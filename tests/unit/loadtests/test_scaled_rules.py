"""The rules of the alert runs are those of deploy/prometheus with shorter times."""

from __future__ import annotations

from loadtests.alert_runs.scaled_rules import alert_names, scaled


def test_ranges_offsets_and_waits_shrink_and_hold_two_samples() -> None:
    rules = {
        rule.get("alert", rule.get("record")): rule
        for group in scaled("shoal-slo-rules.yml", 480.0)["groups"]
        for rule in group["rules"]
    }
    assert "[4s]" in rules["shoal:burn_rate:5m"]["expr"]  # 0.6 s would hold no two samples
    assert "[8s]" in rules["shoal:burn_rate:1h"]["expr"]
    assert "[180s]" in rules["shoal:burn_rate:1d"]["expr"]
    assert "offset 180s" in rules["ShoalSpendRises"]["expr"]
    assert rules["ShoalSpendRises"]["for"] == "4s"


def test_an_alert_keeps_its_condition() -> None:
    rules = [rule for group in scaled("shoal-rules.yml", 1.0)["groups"] for rule in group["rules"]]
    by_name = {rule["alert"]: rule for rule in rules}
    assert list(by_name) == alert_names("shoal-rules.yml")
    assert by_name["ShoalProposalWaits"]["expr"] == "shoal_proposal_waits == 1"
    assert by_name["ShoalProposalWaits"]["for"] == "600s"
