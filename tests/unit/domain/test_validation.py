"""Invalid external values of any type are refused with InvalidValue."""

from __future__ import annotations

import pytest

from autoscaler.domain.validation import InvalidValue, finite


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_an_integer_beyond_every_float_is_refused(value: int) -> None:
    with pytest.raises(InvalidValue, match="allowed: a finite number from 0 to 1e"):
        finite("req_per_s", value, 0.0, 1e6)
    with pytest.raises(InvalidValue):
        finite("req_per_s", value)
