"""On-demand prices of AWS, from its price list API (`aws pricing get-products`) or offer files.

Only Linux on shared hardware without further licences counts. Reserved capacity, dedicated hosts
and capacity blocks have other prices.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from streams.files.cloud_prices import CloudPrice
from streams.files.currencies import USD_ONLY, Rates, usd_per_unit
from streams.files.price_conditions import ON_DEMAND
from streams.files.tables import column
from streams.files.times import date_ms, finite_number
from streams.files.user_errors import UserError

_MOST_USD = 100_000.0
_HOURS = ("hrs", "hours", "hour")
_WANTED = {
    "operatingsystem": ("linux",),
    "tenancy": ("shared",),
    "preinstalledsw": ("na",),
    "capacitystatus": ("used",),
    "marketoption": ("ondemand",),
}
"""Attributes and their allowed values. An attribute that is missing is allowed."""

_Product = tuple[str, Mapping[str, Any], Iterable[Any]]
"""Place, attributes, and offers of a product."""


def aws_products(name: str, text: str) -> list[_Product] | None:
    """The products in `text`. None: `text` is no price list of AWS."""
    if '"terms"' in text or '\\"terms\\"' in text:
        try:
            return list(_products(name, orjson.loads(text)))
        except orjson.JSONDecodeError:
            return None
    if text.lstrip()[:20].startswith(('"FormatVersion"', "FormatVersion")):
        return list(_of_csv(name, text))
    return None


def aws_prices(
    name: str, products: Iterable[_Product], rates: Rates = USD_ONLY
) -> Iterator[CloudPrice]:
    """The hourly on-demand price of each instance type. UserError names an invalid product."""
    for place, attributes, offers in products:
        flat = {key.lower(): str(value).lower() for key, value in attributes.items()}
        instance, region = flat.get("instancetype", ""), flat.get("regioncode", "")
        fits = all(flat.get(key, values[0]) in values for key, values in _WANTED.items())
        if not instance or not region or not fits:
            continue
        for offer in offers:
            yield from _hourly(place, region, instance, offer, rates)


def _hourly(
    place: str, region: str, instance: str, offer: Any, rates: Rates
) -> Iterator[CloudPrice]:
    dimensions = offer.get("priceDimensions") if isinstance(offer, Mapping) else None
    for one in dimensions.values() if isinstance(dimensions, Mapping) else ():
        prices = one.get("pricePerUnit") if isinstance(one, Mapping) else None
        if not isinstance(prices, Mapping) or str(one.get("unit")).lower() not in _HOURS:
            continue
        known = next((code for code in prices if code in rates), next(iter(prices), "USD"))
        factor = usd_per_unit(place, "pricePerUnit", str(known), rates)
        value = finite_number(prices.get(known))
        if value is None or not 0.0 <= factor * value <= _MOST_USD:
            raise UserError(
                f"{place}: pricePerUnit: {str(prices.get(known))[:40]!r} is not allowed; allowed: "
                f"0 to {_MOST_USD:g} USD per hour"
            )
        if value > 0.0:  # 0 is a placeholder of a product that is not sold by the hour.
            at_ms = date_ms(offer.get("effectiveDate"))
            yield CloudPrice(region, region, instance, ON_DEMAND, factor * value, at_ms)


def _products(name: str, whole: Any) -> Iterator[_Product]:
    """Products of an answer of get-products, or of an offer file."""
    if isinstance(whole, Mapping) and isinstance(whole.get("products"), Mapping):
        terms = whole.get("terms")
        offered = terms.get("OnDemand") if isinstance(terms, Mapping) else None
        for sku, product in whole["products"].items():
            offers = offered.get(sku) if isinstance(offered, Mapping) else None
            yield f"{name}: sku {sku[:40]}", _attributes(product), _listed(offers)
        return
    listed = whole.get("PriceList") if isinstance(whole, Mapping) else whole
    if not isinstance(listed, list):
        listed = [whole]
    for number, one in enumerate(listed, 1):
        place = f"{name}: product {number}"
        try:
            item = orjson.loads(one) if isinstance(one, str) else one
        except orjson.JSONDecodeError as error:
            raise UserError(f"{place}: not JSON ({error})") from None
        if not isinstance(item, Mapping):
            raise UserError(f"{place}: expected a product of AWS's price list")
        terms = item.get("terms")
        offers = terms.get("OnDemand") if isinstance(terms, Mapping) else None
        yield place, _attributes(item.get("product")), _listed(offers)


def _attributes(product: Any) -> Mapping[str, Any]:
    found = product.get("attributes") if isinstance(product, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _listed(offers: Any) -> list[Any]:
    return list(offers.values()) if isinstance(offers, Mapping) else []


def _of_csv(name: str, text: str) -> Iterator[_Product]:
    """Rows of an offer file in CSV, which begins with lines about the file."""
    names: list[str] = []
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for cells in reader:
            if not names:
                names = [column(cell).replace("_", "") for cell in cells] if "SKU" in cells else []
                continue
            row = dict(zip(names, cells, strict=False))
            if row.get("termtype", "OnDemand") != "OnDemand":
                continue
            price = {row.get("currency") or "USD": row.get("priceperunit")}
            dimension = {"unit": row.get("unit"), "pricePerUnit": price}
            offer = {"effectiveDate": row.get("effectivedate"), "priceDimensions": {"1": dimension}}
            row["preinstalledsw"] = row.get("preinstalleds.w") or row.get("preinstalledsw") or "NA"
            yield f"{name}:{reader.line_num}", row, [offer]
    except csv.Error as error:
        raise UserError(f"{name}:{reader.line_num}: not CSV ({error})") from None
