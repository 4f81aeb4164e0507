"""`shoal rollout`: the state of rollouts as text, and the records of its commands."""

from __future__ import annotations

import argparse
from typing import cast

import pytest

from streams.cli.controls import _control
from streams.cli.publish import Broker
from streams.cli.rollout import lines
from streams.files.user_errors import UserError
from streams.operator_commands import Conflict, Signed, control_record
from topics.controls import ROLLOUT_BACK, ROLLOUT_PAUSE

ANN = Signed("ann", "incident 7", 1_000, "id1", is_person=True)
ROLLING = {
    "state": "waiting",
    "engine": "v33",
    "former": "v32",
    "done": 2,
    "total": 8,
    "waves": 2,
    "since_s": 300.0,
    "why": "no capacity can leave, and no GPU is free",
}


def shown(**changes: object) -> str:
    return " ".join(" ".join(lines([{"model": "chat", "rollout": {**ROLLING, **changes}}])).split())


def test_the_progress_and_the_obstacle_of_a_rollout_are_shown() -> None:
    text = shown()
    assert text.startswith("chat waiting: 2 of 8 combos run v33; wave 2, begun 5 min ago: no capa")
    taken = shown(state="taken back", engine="v32", former="v33", done=8, why="x ended 2 times")
    assert taken == "chat v33 was taken back 5 min ago: x ended 2 times; 8 of 8 combos run v32"
    assert "approval" in shown(state="asks", why="")


def test_models_without_a_rollout_are_summarised() -> None:
    text = " ".join(lines([{"model": "chat", "rollout": None}, {"model": "code"}]))
    assert "No rollout" in text and "chat" not in text


@pytest.mark.parametrize(
    ("command", "kind", "active"),
    [
        ("rollout-pause", ROLLOUT_PAUSE, True),
        ("rollout-resume", ROLLOUT_PAUSE, False),
        ("rollout-back", ROLLOUT_BACK, True),
    ],
)
def test_a_command_becomes_a_record_of_its_kind(command: str, kind: str, active: bool) -> None:
    record, said = control_record(command, "chat", ANN, "", ["chat"], [])
    assert (record.kind, record.active, record.scope) == (kind, active, "chat")
    assert said.startswith("chat: ")


def test_a_pause_that_is_not_in_force_cannot_end() -> None:
    with pytest.raises(Conflict, match="not paused"):
        control_record("resume", "chat", ANN, "", ["chat"], [])


def test_a_command_without_a_model_is_refused_in_the_words_of_the_user() -> None:
    args = argparse.Namespace(model="", all=False, command="rollout-back")
    with pytest.raises(UserError, match="shoal rollout back: name a model, or --all"):
        _control(args, cast(Broker, None))


def test_the_figures_of_a_canary_are_shown() -> None:
    tpot = {
        "property": "tpot", "new": 26.04, "former": 20.0, "worse": 9, "worse_of": 9, "fit": 0,
        "fit_of": 9, "verdict": "open",
    }  # fmt: skip
    canary = {"answers": 180, "remaining_s": 3000.0, "properties": [tpot]}
    text = shown(state="comparing", canary=canary)
    assert "comparing" in text and "180 answers" in text
    figures = "time per token 26.0 ms instead of 20.0 ms"
    assert f"{figures} (open: worse in 9 of 9, fit in 0 of 9)" in text
