"""Names of price columns: "Price ($/hr)", "Hourly cost EUR" and "spot_price_per_hour" are prices.

A name may contain the currency or the unit of the price. Names are those of `tables.column`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from streams.files.price_conditions import SPOT
from streams.files.tables import Row

_PRICE = frozenset({"price", "cost", "pricing", "rate", "tariff"})
_SPOT = frozenset({"spot", "preemptible"})
_HOURLY = frozenset({"hourly", "hour", "hr", "hrs", "h", "per", "in", "on", "demand", "ondemand",
                     "od", "node", "instance", "vm", "linux", "list", "usd", "us"})  # fmt: skip
_CURRENCIES = frozenset({"aud", "brl", "cad", "chf", "cny", "eur", "gbp", "inr", "jpy", "krw",
                         "nok", "sek", "sgd"})  # fmt: skip
_UNITS = frozenset({"second", "sec", "minute", "min", "day", "daily", "week", "month", "monthly",
                    "mo", "year", "yearly", "annual", "gpu", "core", "vcpu", "token", "tokens",
                    "1m"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Name:
    """Meaning of a column name. column: the usual name of such a column. currency, unit: as far as
    the name states them, otherwise ""; unit is only stated if it is no hour."""

    column: str
    currency: str
    unit: str


def usual_names(columns: Iterable[str]) -> Mapping[str, _Name]:
    """The meaning of each of `columns` that is a price by its words. If any price is per hour, the
    others are left out."""
    found = {name: made for name in columns if (made := _meaning(name))}
    hourly = {name: made for name, made in found.items() if not made.unit}
    return hourly or found


def with_usual_names(row: Row, names: Mapping[str, _Name]) -> Row:
    """`row` with its prices under usual names, and with the currency and unit of `names`."""
    if not names:
        return row
    made = dict(row)
    for name, meaning in names.items():
        if name not in row:
            continue
        made.setdefault(meaning.column, row[name])
        if meaning.currency:
            made.setdefault("currency", meaning.currency)
        if meaning.unit:
            made.setdefault("unit", meaning.unit)
    return made


def _meaning(name: str) -> _Name | None:
    words = name.split("_")
    if not _PRICE.intersection(words):
        return None
    rest = [word for word in words if word not in _PRICE | _SPOT | _HOURLY]
    currencies = [word.upper() for word in rest if word in _CURRENCIES]
    units = [word for word in rest if word in _UNITS]
    if len(currencies) + len(units) < len(rest) or len(currencies) > 1:
        return None
    column = f"{SPOT}_price" if _SPOT.intersection(words) else "price"
    return _Name(column, currencies[0] if currencies else "", " ".join(units))
