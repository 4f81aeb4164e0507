"""Read prices and availability of nodes strictly from a user's file: a YAML or JSON mapping from
pool to number.

A pool is named `region/name/market`; `region/name` alone means its on-demand nodes. Prices may also
be a cloud's price list (`cloud_prices`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from streams.files import units
from streams.files.aws_price_list import aws_prices, aws_products
from streams.files.cloud_prices import KNOWN as PRICE_LISTS
from streams.files.cloud_prices import (
    CloudPrice,
    cloud_prices,
    is_price_list,
    newest,
    pools_by_name,
    prices_of_pools,
    resembles_price_list,
    without_future,
)
from streams.files.currencies import USD_ONLY, Rates
from streams.files.gcp_skus import sku_prices, skus_of
from streams.files.price_units import usd_per_h_factor
from streams.files.tables import column, table_of
from streams.files.user_errors import UserError
from streams.files.yaml_tree import read_text
from topics.checks import InvalidValue
from topics.records import Availability, Price

KINDS = ("prices", "availability")

_PRICE = units.number(0.0, 100_000.0)
_NODES = units.count(0, 1_000_000)


def read_feed(
    kind: str,
    raw: bytes,
    name: str,
    now_ms: int,
    instances: Mapping[str, str] | None = None,
    rates: Rates = USD_ONLY,
) -> list[Any]:
    """The records in `raw`. kind: one of KINDS. instances: for a price list, the instance type of
    each pool; None names the pools after the cloud's instance types. Prices of a list that are
    dated after the present time are ignored. rates: USD per unit of each currency that a price
    list may have. UserError names the line and the pool."""
    prices = _price_list(raw, name, rates)
    if prices is not None:
        if kind != "prices":
            raise UserError(f"{name}: a price list; allowed with: shoal feed prices")
        present = without_future(list(prices), time.time() * 1000.0)
        return _of_cloud(present, name, now_ms, instances)
    root = read_text(raw, name, "pools and their " + kind)
    parse: Callable[[object], Any] = _PRICE if kind == "prices" else _NODES
    made = Price if kind == "prices" else Availability
    found = []
    for key in root:
        value = root.take(key, parse)
        parts = key.split("/")
        if len(parts) not in (2, 3) or not all(parts):
            raise root.error(key, "not a pool; allowed: region/name/market, such as us/l40s/spot")
        pool = key if len(parts) == 3 else f"{key}/on-demand"
        try:
            found.append(made(pool, value, now_ms))
        except InvalidValue as error:
            said = f"{error.value!r} is not allowed; allowed: {error.allowed}"
            raise root.error(key, said) from None
    return found


def _price_list(raw: bytes, name: str, rates: Rates) -> Iterator[CloudPrice] | None:
    """The prices in `raw`; None if `raw` is no price list of a cloud."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    skus = skus_of(text)
    if skus is not None:
        return sku_prices(name, skus, rates)
    products = aws_products(name, text)
    if products is not None:
        return aws_prices(name, products, rates)
    first = text.lstrip().split("\n", 1)[0]
    if text.lstrip()[:1] in ("{", "["):
        try:
            whole = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None  # `raw` may be YAML.
        factor = 1.0
        if isinstance(whole, dict):
            outer = {column(str(key)): one for key, one in whole.items()}
            factor = usd_per_h_factor(name, outer, rates)
            lists = [value for value in whole.values() if isinstance(value, list)]
            whole = lists[0] if len(lists) == 1 else None
        if not isinstance(whole, list) or not whole or not isinstance(whole[0], dict):
            return None
        return cloud_prices(table_of(name, text, PRICE_LISTS), rates, factor)
    if ": " in first or not any(mark in first for mark in ",;\t"):
        return None
    table = table_of(name, text, PRICE_LISTS)
    if is_price_list(table.columns):
        return cloud_prices(table, rates)
    if resembles_price_list(table.columns) or "\t" in first:
        raise UserError(
            f"{table.place}: {first[:60]!r} begins no price list; expected {PRICE_LISTS}"
        )
    return None


def _of_cloud(
    prices: Sequence[CloudPrice], name: str, now_ms: int, instances: Mapping[str, str] | None
) -> list[Any]:
    own = pools_by_name(prices) if instances is None else instances
    try:
        return [
            Price(pool, usd, now_ms)
            for pool, usd in newest(prices_of_pools(name, prices, own)).items()
        ]
    except InvalidValue as error:
        raise UserError(f"{name}: {error}") from None
