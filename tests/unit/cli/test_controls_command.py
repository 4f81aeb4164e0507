"""`shoal approve | reject`: the list of open proposals."""

from __future__ import annotations

import argparse
from typing import Any, cast

import pytest

from streams.cli.controls import _control, _verdict
from streams.cli.publish import Broker
from streams.files.user_errors import UserError
from topics.records import Control, Decision
from topics.topic_table import CONTROLS, Topic

NOW_MS = 1_700_000_000_000


def test_an_open_proposal_is_listed_if_an_earlier_leader_used_its_number() -> None:
    class Topics:
        now_ms = NOW_MS

        def last(self, topic: Topic) -> list[Any]:
            if topic is CONTROLS:
                return [Control("m", "verdict", True, "ann", "", 1, proposal=4, leader_token=1)]
            return [
                Decision(4, token, "m", "scale_out", NOW_MS, False, "r", expires_ms=NOW_MS + 1000)
                for token in (1, 2)
            ]

    args = argparse.Namespace(proposal=9, command="approve", who="ann", why="")
    with pytest.raises(UserError, match=r"#9: no such proposal; open: 4$"):
        _verdict(args, cast(Broker, Topics()))


def test_pause_accepts_a_model_or_all_but_not_both() -> None:
    args = argparse.Namespace(model="code", all=True, command="pause")
    with pytest.raises(UserError, match="shoal pause: name a model or --all, not both"):
        _control(args, cast(Broker, None))


def test_a_broker_that_does_not_answer_in_time_gives_one_error_line() -> None:
    async def late() -> None:
        raise TimeoutError

    with pytest.raises(UserError, match=r"^--broker h:1: no answer in time$"):
        Broker("h:1", "shoal.", 0)._run(late())
