"""Declared exchange rates of currencies in price lists.

Shoal reads no exchange rates. A price in another currency is refused unless its rate is declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from streams.files.csv_rows import finite_cell
from streams.files.user_errors import UserError

Rates = Mapping[str, float]
"""USD per unit of each currency."""

USD_ONLY: Rates = {"USD": 1.0}
RATE_HELP = "USD per unit of a currency in the file, such as EUR=1.08 (default: USD only)"
_CODE = re.compile(r"[A-Z]{3}\Z")
_MOST = 1e6


def parse_rates(texts: Iterable[str], option: str = "--rate") -> Rates:
    """The rates in `texts`, each "EUR=1.08", and that of USD. UserError for anything else."""
    found = dict(USD_ONLY)
    for text in texts:
        code, _, value = text.partition("=")
        rate = finite_cell(value, 1.0 / _MOST, _MOST)
        if not _CODE.match(code) or code == "USD" or rate is None:
            raise UserError(
                f"{option}: {text[:40]!r} is not allowed; allowed: CURRENCY=USD per unit, such as "
                "EUR=1.08"
            )
        found[code] = rate
    return found


def usd_per_unit(place: str, name: str, currency: str, rates: Rates) -> float:
    """USD per unit of `currency`. UserError: its rate is not declared."""
    rate = rates.get(currency.strip().upper() or "USD")
    if rate is None:
        raise UserError(
            f"{place}: {name}: {currency[:40]!r} is not allowed; allowed: "
            f"{', '.join(sorted(rates))}; --rate CURRENCY=USD declares another one"
        )
    return rate
