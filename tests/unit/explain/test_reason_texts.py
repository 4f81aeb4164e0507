"""Every reason code has one sentence. Figures change only the sentence, never the code."""

from __future__ import annotations

import math

import orjson
import pytest

from autoscaler.domain.reason import Reason, about, codes_of
from autoscaler.explain.reason_texts import FAMILIES, TEXTS, joined, text, text_with_subject, texts
from topics.codec import read_value, write_value
from topics.reason_codes import ReasonCode

POOL = "us/l4/spot"
NO_ROOM = Reason(ReasonCode.NO_ROOM, names=("chat:a1@us/l4/spot",))


def test_every_code_has_a_sentence_in_exactly_one_family() -> None:
    assert {*TEXTS} == {*ReasonCode}
    assert sum(map(len, FAMILIES.values())) == len(ReasonCode)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (Reason(ReasonCode.PERIOD, "*", (), (300.0,)), "every 5 min"),
        (Reason(ReasonCode.PRICE, POOL, (), (3.0, 2.0)), f"{POOL} now 3.00 USD/h (was 2.00)"),
        (
            Reason(ReasonCode.AVAILABILITY, POOL, (), (12, 0)),
            f"{POOL}: 12 nodes available (was 0)",
        ),
        (
            Reason(ReasonCode.CAPACITY_LOST, "chat", ("us.l4.spot.1",)),
            "the capacity on us.l4.spot.1 was lost",
        ),
        (
            Reason(ReasonCode.CAPACITY_LOST, "chat", ("a", "b", "c", "d", "e")),
            "the capacity on a, b, c and 2 more was lost",
        ),
        (
            Reason(
                ReasonCode.PROMISED_SPOT,
                "chat",
                (),
                (0.5,),
                because=(Reason(ReasonCode.NOT_POSSIBLE),),
            ),
            "spot <= 50% is violated: the available capacity allows no plan that keeps it",
        ),
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
            "chat: no free GPUs in us/l4/spot yet for chat:a1@us/l4/spot",
        ),
        (
            Reason(ReasonCode.SURGE, "chat", (), (15.1, 0.8, 17.6, 2)),
            "demand of 15.1 req/s is over 80% of capacity 17.6",
        ),
        (
            Reason(ReasonCode.SURGE, "chat", (), (3.0, 0.8, 0.0, 0)),
            "demand of 3.0 req/s, and no instance is running",
        ),
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


def test_missing_figures_do_not_fail_a_decision() -> None:
    assert text(Reason(ReasonCode.PRICE, POOL)) == ReasonCode.PRICE.meaning


def test_underlying_reasons_follow_their_reason() -> None:
    derated = Reason(ReasonCode.DERATED, "chat", quantities=(0.85,))
    wake = Reason(ReasonCode.WAKE, "chat", because=(derated,))
    assert text(wake) == ("its first requests arrived; capacity derated to 85% by measurements")
    assert codes_of([wake, wake]) == (ReasonCode.WAKE, ReasonCode.DERATED)


def test_a_subject_is_named_if_it_is_a_model_or_a_pool() -> None:
    one = Reason(ReasonCode.NO_USABLE_NODE, "chat")
    assert text_with_subject(one) == f"chat: {text(one)}"
    whole = Reason(ReasonCode.BUDGET, "*", quantities=(2.0,))
    assert text_with_subject(whole) == text(whole) == "budget 2.00 USD/h"
    assert about([one, whole], "chat") == (one,)


def test_a_text_fits_its_record_and_repeats_no_reason() -> None:
    assert len(joined([NO_ROOM] * 100)) == 2000
    assert texts([NO_ROOM] * 100) == (text(NO_ROOM),)


def test_reasons_that_differ_only_in_figures_or_quotes_are_of_one_kind() -> None:
    """A decision with a reason of the same kind is not stated again."""
    soon = Reason(ReasonCode.SERVING_IN, quantities=(10.0,))
    later = Reason(ReasonCode.SERVING_IN, quantities=(70.0,), quoted="x")
    first, second = (Reason(ReasonCode.LEFT_OUT, "chat", because=(one,)) for one in (soon, later))
    assert first != second
    assert first.kind == second.kind
    assert first.kind != Reason(ReasonCode.LEFT_OUT, "code", because=(soon,)).kind


def test_a_reason_with_underlying_reasons_survives_the_wire_format() -> None:
    inner = Reason(ReasonCode.REPLANNED, "chat", ("n",), (1.5,), "words", (NO_ROOM,))
    deep = Reason(ReasonCode.LEFT_OUT, "chat", because=(inner,))
    assert read_value(Reason, orjson.loads(write_value(deep))) == deep


def test_a_rise_within_the_planned_share_is_not_said_to_be_over_it() -> None:
    why = Reason(ReasonCode.SURGE, "chat", quantities=(1.4, 0.85, 1.8, 4))
    assert text(why) == "demand of 1.4 req/s is within 85% of capacity 1.8"
