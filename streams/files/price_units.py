"""Check the currency and the unit of a price list: only USD per hour is read."""

from __future__ import annotations

import re
from collections.abc import Mapping

from streams.files.user_errors import UserError

_CURRENCY = "currency"
_UNITS = frozenset(
    {
        "unit", "units", "unit_of_measure", "uom", "price_unit", "pricing_unit", "unit_price_unit",
        "usage_unit", "billing_unit", "period", "billing_period", "price_period", "pricing_period",
        "per", "price_per", "billing_cycle",
    }
)  # fmt: skip
"""Columns whose value is the unit of the price."""
_USD = re.compile(r"(?:usd|us ?\$|\$|us dollars?)\Z")
_HOURLY = re.compile(
    r"(?:(?:usd|us ?\$|\$) ?)?(?:(?:/|per) ?)?(?:1 ?/? ?)?(?:(?:node|instance|vm)[ -])?"
    r"(?:h|hrs?|hours?|hourly)\Z"
)


def refuse_other_units(place: str, row: Mapping[str, object]) -> None:
    """UserError if a column of `row` states another currency than USD or another unit than an hour.

    Columns have the names of `streams.files.tables.column`. Shoal has no exchange rates, and a
    month has no fixed number of hours, so nothing is converted.
    """
    for name, value in row.items():
        text = " ".join(str(value).split()).lower() if value is not None else ""
        if not text or isinstance(value, (list, dict)):
            continue
        if _CURRENCY in name and not _USD.match(text):
            raise UserError(f"{place}: {name}: {str(value)[:40]!r} is not allowed; allowed: USD")
        if name in _UNITS and not _HOURLY.match(text):
            raise UserError(
                f"{place}: {name}: {str(value)[:40]!r} is not allowed; allowed: USD per hour, "
                "such as 1 Hour"
            )
