"""Instances stay for some time after their start, unless a constraint makes them leave."""

from __future__ import annotations

from tests.unit.planning.answer_requests import FULL, L4, L4_SPOT, ask, leaving, one_model

SMALL = "m:a1@r/l4/on-demand"


def test_an_instance_that_settles_is_not_exchanged_for_a_cheaper_one() -> None:
    cheaper = one_model((L4, L4_SPOT), spot_share=1.0)
    assert leaving(ask(cheaper, FULL, {"m": 0.5}, {SMALL: 1})) == {SMALL: 1}
    assert not leaving(ask(cheaper, FULL, {"m": 0.5}, {SMALL: 1}, settling=((SMALL, 1),)))


def test_an_instance_that_settles_stays_although_it_is_superfluous() -> None:
    asked = one_model((L4,)), FULL, {"m": 0.1}, {SMALL: 2}
    assert leaving(ask(*asked)) == {SMALL: 1}
    assert not leaving(ask(*asked, settling=((SMALL, 2),)))
    assert leaving(ask(*asked, settling=((SMALL, 1),))) == {SMALL: 1}


def test_an_instance_that_settles_leaves_if_its_place_is_needed() -> None:
    """A lower maximum holds, whatever it costs."""
    got = ask(
        one_model((L4,), max_instances=1), FULL, {"m": 0.5}, {SMALL: 2}, settling=((SMALL, 2),)
    )
    assert leaving(got) == {SMALL: 1}
