"""Verdicts on the sessions of an upgrade: whole streams in time, lost requests, broken streams."""

from __future__ import annotations

import math
from dataclasses import replace

from loadtests.mixed_versions import Judge
from loadtests.rolling_upgrade import attained
from loadtests.session_load import Request, SessionLoad

WHOLE = Request("chat", "gateway-a", 100.0, 2.0, 200, "", "t", 0, 500.0, 1500.0, 11)


def test_a_stream_attains_if_its_first_token_and_its_mean_time_per_token_are_in_time() -> None:
    """Only whole streams that ended in the given time count."""
    late = replace(WHOLE, first_ms=2100.0, last_ms=2200.0)
    slow = replace(WHOLE, last_ms=1600.0)
    broken = replace(WHOLE, why="no end")
    assert attained([WHOLE, late, slow, broken, WHOLE], 0.0, math.inf) == 0.5
    assert attained([WHOLE, late], 0.0, 102.0) == 0.0
    assert attained([WHOLE, replace(late, sent_s=99.0)], 102.0, math.inf) == 1.0


def test_only_a_kill_during_the_request_explains_a_broken_stream() -> None:
    """A refused connection needs no explanation, because the request is repeated elsewhere."""
    judge = Judge({"gateway-a": [101.0]})
    cut = replace(WHOLE, status=200, why="no end")
    judge.judge([
        cut, replace(cut, gateway="gateway-b"), replace(cut, sent_s=101.5),
        replace(cut, why="ConnectionRefusedError", gateway="gateway-b"), replace(WHOLE, tried=1),
    ])  # fmt: skip
    assert judge.broken == {"gateway-b: no end": 1, "gateway-a: no end": 1}
    assert judge.repeated == {"no end": 3, "ConnectionRefusedError": 1}
    assert judge.answered == 1
    assert not judge.lost
    judge.judge([replace(cut, tried=4)])
    assert judge.lost == {"no end": 1}


def test_a_restart_on_purpose_excuses_only_requests_that_meet_it(tmp_path: object) -> None:
    load = SessionLoad({}, (), 1, tmp_path)  # type: ignore[arg-type]
    failed = replace(WHOLE, why="timeout")
    load.requests += [WHOLE, failed, replace(failed, sent_s=90.0), replace(failed, sent_s=130.0)]
    load.excused.append(("gateway-a", 101.0, 110.0))
    assert load.failed(0.0, 120.0) == [replace(failed, sent_s=90.0)]
    assert load.failed(0.0, math.inf) == load.requests[2:]
    load.excused[0] = ("gateway-b", 101.0, 110.0)
    assert load.failed(100.0, 120.0) == [failed]
