"""Sizing rules of installed packages."""

from __future__ import annotations

import math

import pytest

from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.sizing import rules, scale_out_rules
from autoscaler.state.model_view import TargetProposal
from tests.unit.sizing.target_views import stats, view
from topics.checks import MOST_REQ_PER_S
from topics.extensions import Extension
from topics.reason_codes import ReasonCode


@pytest.mark.parametrize(
    ("rate", "target"),
    [
        (12.0, 12.0),
        (MOST_REQ_PER_S, MOST_REQ_PER_S),
        (1.01 * MOST_REQ_PER_S, 8.0),
        (-1.0, 8.0),
        (math.nan, 8.0),
    ],
)
def test_a_rule_of_a_package_proposes_possible_rates(
    rate: float, target: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = TargetProposal(rate, Reason(ReasonCode.SURGE, "chat", quantities=(rate,)))
    rule = Extension("own", "a package", lambda _view: made)
    monkeypatch.setattr(scale_out_rules, "extensions", lambda _group: (rule,))
    found = rules.update_target(view(ModelDemand(local=stats(960, 120))))
    assert found.target.req_per_s == pytest.approx(target)
