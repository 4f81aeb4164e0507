"""Check the currency and the unit of a price list: prices are USD per hour, or in a currency with a
declared rate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from streams.files.currencies import USD_ONLY, Rates, usd_per_unit
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
_AMOUNT = re.compile(r"(?:us ?)?\$? ?(\d{1,3}(?:,\d{3})+\.\d+|[\d.]+) ?(?:usd)? ?(.*)\Z")
"""Commas are read only before a decimal point, because 3,673 may be 3.673."""
_HOURLY = re.compile(
    r"(?:(?:usd|us ?\$|\$) ?)?(?:(?:/|per) ?)?(?:1 ?/? ?)?(?:(?:node|instance|vm)[ -])?"
    r"(?:h|hrs?|hours?|hourly)\Z"
)


def bare_amount(text: str) -> str:
    """The number in a price such as "$0.80 hourly" or "0.80 USD/h"; `text` if its currency or unit
    is another one."""
    found = _AMOUNT.match(" ".join(text.split()).lower())
    is_price = found is not None and (not found[2] or _HOURLY.match(found[2]))
    return found[1].replace(",", "") if found and is_price else text


def usd_per_h_factor(
    place: str, row: Mapping[str, object], rates: Rates = USD_ONLY, otherwise: float = 1.0
) -> float:
    """Factor from the prices of `row` to USD per hour. otherwise: the factor if no column names a
    currency.

    Columns have the names of `streams.files.tables.column`. UserError: a column names a currency
    without a rate, or another unit than an hour. A month has no fixed number of hours, so units are
    not converted.
    """
    factor = otherwise
    for name, value in row.items():
        text = " ".join(str(value).split()).lower() if value is not None else ""
        if not text or isinstance(value, (list, dict)):
            continue
        if _CURRENCY in name:
            usd = _USD.match(text)
            factor = 1.0 if usd else usd_per_unit(place, name, str(value).strip(), rates)
        if name in _UNITS and not _HOURLY.match(text):
            raise UserError(
                f"{place}: {name}: {str(value)[:40]!r} is not allowed; allowed: USD per hour, "
                "such as 1 Hour"
            )
    return factor
