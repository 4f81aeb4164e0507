"""Every reason code has a sentence, and only the sentence depends on the figures."""

from __future__ import annotations

import math

import orjson
import pytest

from autoscaler.domain.reason import Reason, about, codes_of
from autoscaler.explain.text import FAMILIES, TEXTS, joined, text, text_with_subject, texts
from topics.codec import read_value, write_value
from topics.reason_codes import ReasonCode

POOL = "us/l4/spot"
NO_ROOM = Reason(ReasonCode.NO_ROOM, names=("chat:a1@us/l4/spot",))


def test_every_code_has_its_sentence_in_one_family() -> None:
    assert {*TEXTS} == {*ReasonCode}
    assert sum(map(len, FAMILIES.values())) == len(ReasonCode)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason(ReasonCode.PERIOD, "*", (), (300.0,)), "every 5 min"),
        (Reason(ReasonCode.PRICE, POOL, (), (3.0, 2.0)), f"{POOL} now 3.00 USD/h (was 2.00)"),
        (
            Reason(ReasonCode.NODE_LOST, "*", ("n0", "n1", "n2"), (5,)),
            "n0, n1, n2 and 2 more lost",
        ),
        (
            Reason(ReasonCode.ENGINES_SEEN, "chat", (), (12, 30)),
            "chat: engines: 12 running, 30 waiting",
        ),
        (
            Reason(ReasonCode.LEFT_OUT, "chat", because=(NO_ROOM,)),
            "chat: no room yet for chat:a1@us/l4/spot",
        ),
        (
            Reason(ReasonCode.SURGE, "chat", (), (15.1, 0.8, 17.6, 2)),
            "15.1 req/s is over 80% of 17.6",
        ),
        (Reason(ReasonCode.SURGE, "chat", (), (3.0, 0.8, 0.0, 0)), "3.0 req/s, and nothing runs"),
        (
            Reason(ReasonCode.STILL_IN_FLIGHT, quantities=(1,)),
            "no arrivals, but 1 request in flight",
        ),
        (
            Reason(ReasonCode.POOL_FULL, POOL, (), (1,)),
            "the only node of us/l4 (spot) in use",
        ),
        (
            Reason(ReasonCode.THRESHOLDS_IN_FORCE, "auto", (), (0.42, math.inf)),
            "thresholds 0.42, all in force",
        ),
    ],
)
def test_a_sentence_names_things_and_figures_with_units(reason: Reason, sentence: str) -> None:
    assert text(reason) == sentence


def test_no_decision_fails_for_a_sentence_whose_figures_are_missing() -> None:
    assert text(Reason(ReasonCode.PRICE, POOL)) == ReasonCode.PRICE.meaning


def test_what_is_behind_a_reason_follows_it() -> None:
    derated = Reason(ReasonCode.DERATED, "chat", quantities=(0.85,))
    wake = Reason(ReasonCode.WAKE, "chat", because=(derated,))
    assert text(wake) == (
        "its first requests arrived; capacity derated to 85% because SLOs were missed"
    )
    assert codes_of([wake, wake]) == (ReasonCode.WAKE, ReasonCode.DERATED)


def test_a_subject_is_named_where_it_is_a_model_or_a_pool() -> None:
    one = Reason(ReasonCode.NO_USABLE_NODE, "chat")
    assert text_with_subject(one) == f"chat: {text(one)}"
    whole = Reason(ReasonCode.BUDGET, "*", quantities=(2.0,))
    assert text_with_subject(whole) == text(whole) == "budget 2.00 USD/h"
    assert about([one, whole], "chat") == (one,)


def test_a_line_ends_where_a_record_ends_and_says_nothing_twice() -> None:
    assert len(joined([NO_ROOM] * 100)) == 2000
    assert texts([NO_ROOM] * 100) == (text(NO_ROOM),)


def test_reasons_are_of_a_kind_whatever_their_figures_and_quoted_words() -> None:
    """The kind of a reason shows whether a decision has already stated it."""
    soon = Reason(ReasonCode.COOLDOWN, quantities=(10.0,))
    later = Reason(ReasonCode.COOLDOWN, quantities=(70.0,), quoted="x")
    first, second = (Reason(ReasonCode.LEFT_OUT, "chat", because=(one,)) for one in (soon, later))
    assert first != second
    assert first.kind == second.kind
    assert first.kind != Reason(ReasonCode.LEFT_OUT, "code", because=(soon,)).kind


def test_a_reason_with_others_behind_it_goes_over_the_wire() -> None:
    inner = Reason(ReasonCode.REPLANNED, "chat", ("n",), (1.5,), "words", (NO_ROOM,))
    deep = Reason(ReasonCode.LEFT_OUT, "chat", because=(inner,))
    assert read_value(Reason, orjson.loads(write_value(deep))) == deep
