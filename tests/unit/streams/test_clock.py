"""Conversion of the broker's append times to domain time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streams.clock import Clock, of_append
from topics.time_base import TimeBase

NOW_WALL_MS = 1_800_000_000_000


def clock(speed: float) -> Clock:
    base = TimeBase(speed, 1_700_000_000_000, 0)
    return Clock(base, mono_ns=lambda: 5_000_000_000, broker_ms=lambda: NOW_WALL_MS)


@given(st.floats(0.1, 100.0), st.integers(0, 10_000_000))
def test_ages_are_multiplied_by_the_speed(speed: float, behind: int) -> None:
    """A real second ago is `speed` domain seconds ago. By their log times it is too, up to 1 ms of
    rounding."""
    now = clock(speed)
    then_ms = NOW_WALL_MS - behind
    appended_ms = now.now_ms() - int(behind * speed)
    assert now.event_ms(then_ms) == appended_ms
    (event_ms,) = now.of_log()(np.array([of_append(now.time_base, then_ms)])).tolist()
    assert abs(event_ms - appended_ms) <= 1


@given(st.integers(0, 10_000_000))
def test_records_of_a_broker_ahead_get_the_present_time(ahead: int) -> None:
    """No record has a time in the future."""
    now = clock(1.0)
    assert now.event_ms(NOW_WALL_MS + ahead) == now.now_ms()
    log_ms = of_append(now.time_base, NOW_WALL_MS + ahead)
    assert now.of_log()(np.array([log_ms])).tolist() == [now.now_ms()]


def test_a_wait_is_in_real_time() -> None:
    """At speed 10, ten domain seconds are one real second. A time in the past needs no wait."""
    now = clock(10.0)
    assert abs(now.real_s_until(now.now_ms() + 10_000) - 1.0) < 1e-6
    assert now.real_s_until(now.now_ms() - 1) == 0.0
