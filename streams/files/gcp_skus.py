"""Prices of GCP machine types with GPUs, from the SKUs of the Cloud Billing Catalog API.

GCP has separate prices for cores, memory and GPUs, and no SKU names a machine type. So a price is
the sum over the parts of the machine, which are found by their descriptions ("G2 Instance Core
running in Americas"). Local SSDs have separate prices and are left out. SKUs of commitments,
reservations, sole tenancy, custom shapes and Dynamic Workload Scheduler are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from streams.files.cloud_prices import CloudPrice
from streams.files.currencies import USD_ONLY, Rates, usd_per_unit
from streams.files.gcp_machines import MACHINES, Machine
from streams.files.price_conditions import ON_DEMAND, SPOT
from streams.files.times import date_ms, finite_number
from streams.files.user_errors import UserError

_MARKETS = {"OnDemand": ON_DEMAND, "Preemptible": SPOT}
_PLACE = re.compile(r" (?:running )?in [^()]*\Z")
_SPOT_WORDS = re.compile(r"\ASpot Preemptible | attached to Spot Preemptible VMs\Z")
_OTHER_WORDS = re.compile(
    r"Sole Tenancy|Commit|Custom|Extended|Premium|DWS |Defined Duration|Calendar Mode|"
    r"Capacity Optimized|Reserved "
)
_PART = re.compile(r"(\w+) Instance (Core|Ram)\Z")
_UNITS = {"GPU": "h", "Core": "h", "Ram": "GiBy.h"}
_MOST = 1000.0
"""USD per hour of one part."""


@dataclass(frozen=True, slots=True)
class _Rate:
    """USD per hour of one core, GiB or GPU. at_ms: begin of its validity in ms since 1970."""

    usd_per_h: float
    at_ms: float


_Part = tuple[str, str, str, str]
"""(region, market, "Core", "Ram" or "GPU", family or description of the GPU)."""


def skus_of(text: str) -> list[Any] | None:
    """The SKUs in JSON `text`. None: the text is no catalogue.

    The text has pages of the API, as one document or one per line, or a list of SKUs.
    """
    if '"pricingInfo"' not in text or text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        pages = [orjson.loads(text)]
    except orjson.JSONDecodeError:
        try:
            pages = [orjson.loads(line) for line in text.splitlines() if line.strip()]
        except orjson.JSONDecodeError:
            return None
    found: list[Any] = []
    for page in pages:
        for one in page if isinstance(page, list) else [page]:
            inner = one.get("skus") if isinstance(one, dict) else None
            found += inner if isinstance(inner, list) else [one]
    return found


def sku_prices(name: str, skus: Iterable[Any], exchange: Rates = USD_ONLY) -> Iterator[CloudPrice]:
    """The price of each machine type in each region and market, if the catalogue has all of its
    parts.

    UserError names a SKU that cannot be read, or states that no machine can be priced.
    """
    rates: dict[_Part, _Rate] = {}
    for number, sku in enumerate(skus, 1):
        place = f"{name}: sku {number}"
        try:
            parts = list(_parts(sku))
            rate = _rate(place, sku, exchange) if parts else None
        except (LookupError, TypeError, AttributeError, ValueError):
            raise UserError(f"{place}: not a SKU of GCP's billing catalogue") from None
        for part in parts if rate is not None else ():
            assert rate is not None  # noqa: S101  for mypy
            if part not in rates or rates[part].at_ms < rate.at_ms:
                rates[part] = rate
    found = False
    for region, market in sorted({part[:2] for part in rates}):
        for machine, shape in MACHINES.items():
            priced = _priced(rates, region, market, shape)
            if priced is not None:
                found = True
                usd, at_ms = priced.usd_per_h, priced.at_ms
                yield CloudPrice(region, region, machine, market, round(usd, 6), at_ms)
    if not found:
        raise UserError(
            f"{name}: no machine type has prices of its cores, memory and GPUs here; allowed: all "
            "pages of the SKUs of Compute Engine"
        )


def _parts(sku: Mapping[str, Any]) -> Iterator[_Part]:
    """The parts of machine types that `sku` prices, in each of its regions."""
    category = sku["category"]
    market, text = _MARKETS.get(category["usageType"]), _PLACE.sub("", sku["description"])
    if market is None or _OTHER_WORDS.search(text):
        return
    if _SPOT_WORDS.search(text):
        market, text = SPOT, _SPOT_WORDS.sub("", text)
    core = _PART.match(text)
    if category["resourceGroup"] == "GPU":
        kind, of = "GPU", text
    elif core is not None:
        kind, of = core[2], core[1]
    else:
        return
    known = {shape.family for shape in MACHINES.values()}
    known |= {gpu for shape in MACHINES.values() for gpu in shape.gpu}
    if of in known:
        for region in sku["serviceRegions"]:
            yield str(region), market, kind, of


def _rate(place: str, sku: Mapping[str, Any], exchange: Rates) -> _Rate | None:
    """The newest hourly rate of `sku`. None: it is not hourly, or it is a placeholder of 0 USD."""
    newest = max(sku["pricingInfo"], key=lambda one: date_ms(one.get("effectiveTime")) or 0.0)
    expression = newest["pricingExpression"]
    if expression["usageUnit"] not in _UNITS.values() or not expression["tieredRates"]:
        return None
    price = expression["tieredRates"][0]["unitPrice"]
    currency = str(price.get("currencyCode") or "USD")
    factor = usd_per_unit(place, "currencyCode", currency, exchange)
    units, nanos = (finite_number(price.get(key, 0)) for key in ("units", "nanos"))
    if units is None or nanos is None or not 0.0 <= units + nanos / 1e9 <= _MOST / factor:
        raise UserError(
            f"{place}: unitPrice: {price.get('units')!r:.40} is not allowed; allowed: 0 to "
            f"{_MOST / factor:g} {currency}"
        )
    usd = factor * (units + nanos / 1e9)
    return _Rate(usd, date_ms(newest.get("effectiveTime")) or 0.0) if usd > 0.0 else None


def _priced(rates: Mapping[_Part, _Rate], region: str, market: str, shape: Machine) -> _Rate | None:
    """Price of a machine and the time of its last change; None if the rate of a part is missing."""
    gpu = next(
        (rates[key] for one in shape.gpu if (key := (region, market, "GPU", one)) in rates), None
    )
    if gpu is None:
        return None
    parts = [(gpu, shape.gpus)]
    if shape.family:
        for kind, amount in (("Core", shape.cores), ("Ram", shape.gib)):
            rate = rates.get((region, market, kind, shape.family))
            if rate is None:
                return None
            parts.append((rate, amount))
    usd = sum(rate.usd_per_h * amount for rate, amount in parts)
    return _Rate(usd, max(rate.at_ms for rate, _ in parts))
