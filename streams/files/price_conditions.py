"""Conditions of a row in a price list: only prices of Linux nodes on shared hardware without a
commitment count, as on-demand or as spot prices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from streams.files.tables import Row

SPOT, ON_DEMAND = "spot", "on-demand"
_TERMS = (
    "market", "usage_type", "pricing_model", "type", "term", "term_type", "purchase_option",
    "purchase_type", "offering_class", "offering_type", "lease_contract_length", "commitment",
    "commitment_term", "billing_model", "price_type", "charge_type", "consumption_model",
    "reservation_term", "capacity_type", "sku_name", "meter_name",
)  # fmt: skip
_SYSTEMS = ("os", "os_type", "operating_system", "platform", "product_description",
            "product_name", "software", "pre_installed_sw")  # fmt: skip
_TENANCY = ("tenancy", "tenancy_type")
_SPOT = re.compile(r"spot|preemptible|interruptible")
_MARKET = re.compile(
    r"(?:spot|preemptible|interruptible)(?:[ _-]?(?:vm|instance|node|market|price))?\Z"
)
_FLAG = re.compile(r"(?:is_)?(?:spot|preemptible|interruptible)(?:_instance|_vm|_market)?\Z")
_YES = ("true", "yes", "y", "t", "1", "1.0")
_COMMITTED = re.compile(
    r"low priority|reserv|savings|commit|devtest|upfront|capacity block|\b(?:1|3|one|three)[ -]?y"
    r"|\b(?:month|year|annual)"
)
_LICENSED = re.compile(r"windows|red ?hat|rhel|suse|sles|\bsql")
_DEDICATED = re.compile(r"dedicated|host")


def market_of(row: Row) -> str:
    """The market of `row`, SPOT or ON_DEMAND: from its terms, from a column such as `is_spot`, or
    from any cell that names only a market."""
    named = any(
        _MARKET.match(text) or (_FLAG.match(name) and text in _YES)
        for name, value in row.items()
        if (text := str(value).strip().lower())
    )
    return SPOT if named or _SPOT.search(_words(row, _TERMS)) else ON_DEMAND


def counts(row: Row) -> bool:
    """Whether `row` is a price of a Linux node on shared hardware without a commitment."""
    return not (
        _COMMITTED.search(_words(row, _TERMS))
        or _LICENSED.search(_words(row, _SYSTEMS))
        or _DEDICATED.search(_words(row, _TENANCY))
    )


def _words(row: Row, names: Iterable[str]) -> str:
    texts = (str(row[name]).replace("_", " ") for name in names if row.get(name))
    return "; ".join(texts).lower()
