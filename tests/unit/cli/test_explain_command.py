"""`shoal explain`: the outcome of a proposal."""

from __future__ import annotations

from typing import Any

import pytest

from streams.cli.explain import lines

NOW: dict[str, Any] = {
    "model": "mini", "proposal": 0, "target_req_per_s": 1.5, "telemetry_age_s": None, "desired": (),
    "ready": 0, "wanted": 0, "ready_req_per_s": 0.0, "wanted_req_per_s": 0.0, "usd_per_h": 0.0,
    "attained": None, "ttft_p95_ms": None, "uncertain": "",
}  # fmt: skip
PROPOSED = {
    "model": "mini", "number": 4, "kind": "scale_out", "at_ms": 0, "applied": False,
    "expires_ms": 1_800_000, "change": [("mini:a1@eu/l4/on-demand", 1)], "reason": "it needs one",
}  # fmt: skip
REJECTED = {**PROPOSED, "number": 5, "kind": "hold", "expires_ms": 0, "change": [],
            "reason": "proposal #4 was rejected by ann: not today",
            "codes": ["proposal_rejected"]}  # fmt: skip


def explain_lines(waits: int, *decisions: dict[str, Any]) -> list[str]:
    standing = {**NOW, "proposal": waits}
    found = {"standing": standing, "decisions": decisions, "present": None, "guards": ["none"]}
    return list(map(str, lines(found, None)))


@pytest.mark.parametrize("waits", [4, 0])
def test_a_proposal_waits_only_while_it_is_open(waits: int) -> None:
    first, *others = explain_lines(waits, PROPOSED)
    assert ("waits for approval until" in first) == (waits == 4)
    assert any("shoal approve 4" in line for line in others) == (waits == 4)


def test_an_answer_without_uncertain_predictions_is_accepted() -> None:
    known = {name: value for name, value in NOW.items() if name != "uncertain"}
    found = {"standing": known, "decisions": (), "present": None, "guards": ["none"]}
    assert not any("uncertain" in str(line) for line in lines(found, None))


def test_the_person_who_answered_and_the_reason_are_shown() -> None:
    told = explain_lines(0, PROPOSED, REJECTED)
    assert told[0].endswith("proposed, no longer open")
    assert any("answer" in line and "rejected by ann: not today" in line for line in told)


def test_a_target_below_the_present_rate_is_no_subtraction() -> None:
    sizing = {
        "present_req_per_s": 1.34, "headroom_req_per_s": -0.23, "target_req_per_s": 1.11,
        "code": "surge", "cause": "demand of 1.1 req/s", "utilization": 0.85,
        "derate": 1.0, "needed_req_per_s": 1.11 / 0.85,
    }  # fmt: skip
    found = {"standing": NOW, "decisions": (), "present": None, "guards": [], "sizing": sizing}
    text = " ".join(" ".join(map(str, lines(found, None))).split())
    assert "1.34 req/s now; 1.11 target (more is not proven yet) / 0.85 utilization = 1.31" in text


def test_the_sizing_is_a_sum_that_a_person_can_check() -> None:
    sizing = {
        "present_req_per_s": 2.2, "headroom_req_per_s": 0.3, "target_req_per_s": 2.5,
        "code": "burst", "cause": "bursts of 2.5 req/s around a mean of 2.2", "utilization": 0.85,
        "derate": 0.9, "needed_req_per_s": 2.5 / 0.85 / 0.9,
    }  # fmt: skip
    found = {"standing": NOW, "decisions": (), "present": None, "guards": [], "sizing": sizing}
    text = " ".join(" ".join(map(str, lines(found, None))).split())
    summed = "2.2 req/s now + 0.3 = 2.5 target / 0.85 utilization / 0.90 derating"
    assert f"{summed} = 3.27 req/s of capacity; target: bursts of 2.5 req/s" in text


@pytest.mark.parametrize(("factor", "shown"), [
    (1.21, "/ 1.21 learnt capacity"), (0.8, "/ 0.80 derating"), (1.0, "0.85 utilization ="),
])  # fmt: skip
def test_a_correction_of_capacity_is_shown_in_both_directions(factor: float, shown: str) -> None:
    sizing = {
        "present_req_per_s": 1.0, "headroom_req_per_s": 0.0, "target_req_per_s": 1.0,
        "code": "surge", "cause": "", "utilization": 0.85, "derate": factor,
        "needed_req_per_s": 1.0 / 0.85 / factor,
    }  # fmt: skip
    found = {"standing": NOW, "decisions": (), "present": None, "guards": [], "sizing": sizing}
    assert shown in " ".join(" ".join(map(str, lines(found, None))).split())


@pytest.mark.parametrize(("planned", "measured", "shown"), [
    (0.55, 0.61, "55% of prompt tokens planned with; 61% measured"),
    (0.55, None, "55% of prompt tokens planned with; not measured, as declared"),
    (0.0, 0.2, "0% of prompt tokens planned with; 20% measured"),
])  # fmt: skip
def test_the_hit_rate_is_shown_with_its_source(
    planned: float, measured: float | None, shown: str
) -> None:
    standing = {**NOW, "prefix_hit": planned, "prefix_hit_measured": measured}
    found = {"standing": standing, "decisions": (), "present": None, "guards": []}
    assert shown in " ".join(" ".join(map(str, lines(found, None))).split())
