"""Map price lists and spot price histories of clouds to declared pools.

Price lists are recognised by their columns (docs/reference/formats.md): AWS
`describe-spot-price-history`, Azure's retail prices, and any table with a region, an instance type
and a price, such as SkyPilot's catalogues. Prices for Windows and reservations are ignored.

SkyPilot's catalogue of GCP has separate rows for a host and its GPUs. The price of the node is
their sum. Without the row of the GPU, the price of the node is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from streams.files.currencies import USD_ONLY, Rates
from streams.files.gcp_machines import MACHINES
from streams.files.price_columns import usual_names, with_usual_names
from streams.files.price_conditions import SPOT, counts, market_of
from streams.files.price_units import bare_amount, usd_per_h_factor
from streams.files.tables import Row, Table
from streams.files.times import date_ms, finite_number
from streams.files.user_errors import UserError

_REGION = re.compile(r"([a-z]+(?:-[a-z]+)+-?\d+)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}\Z")
_MOST_USD = 100_000.0
KNOWN = (
    "AWS describe-spot-price-history or price list, Azure retail prices, SKUs of GCP's billing "
    "catalogue, or a table with region, instance_type and price or spot_price"
)
_ACCELERATOR = "accelerator_name"
_EMPTY = ("", "-", "null", "none", "nan", "n/a", "na", "unavailable", "not available")


@dataclass(frozen=True, slots=True)
class CloudPrice:
    """Price of an instance type in USD per hour. zone: "" for the whole region. at_ms: ms since
    1970, None if the list has no times. lacks: the part that the price leaves out, "" = none."""

    region: str
    zone: str
    instance: str
    market: str
    usd_per_h: float
    at_ms: float | None
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class _Form:
    """Columns of a price list. Each field lists the possible column names; the first one in a row
    counts. prices: column names by market; "" if the row names the market. needs: other columns
    that identify this format. keep: whether a row is an hourly price for Linux.
    """

    region: tuple[str, ...]
    instance: tuple[str, ...]
    prices: Mapping[str, tuple[str, ...]]
    time: tuple[str, ...]
    market: Callable[[Row], str]
    keep: Callable[[Row], bool]
    needs: frozenset[str] = frozenset()


def _aws_linux(row: Row) -> bool:
    return str(row.get("product_description") or "Linux/UNIX").lower().startswith("linux")


def _azure_hours(row: Row) -> bool:
    return counts(row) and str(row.get("unit_of_measure") or "1 Hour").lower() in (
        "1 hour",
        "1 hours",
    )


_FORMS = (
    _Form(
        ("availability_zone",), ("instance_type",), {SPOT: ("spot_price",)}, ("timestamp",),
        lambda _: SPOT, _aws_linux, frozenset({"product_description"}),
    ),
    _Form(
        ("arm_region_name",), ("arm_sku_name",), {"": ("retail_price", "unit_price")},
        ("effective_start_date",), market_of, _azure_hours,
    ),
    _Form(
        ("availability_zone", "zone", "region", "location"),
        ("instance_type", "machine_type", "vm_size", "instance", "shape", "instance_name",
         "vm_type", "api_name", "flavor"),
        {
            "": ("price", "price_usd", "usd_per_h", "hourly_price", "on_demand_price"),
            SPOT: ("spot_price", "preemptible_price"),
        },
        ("time", "timestamp", "date", "effective_time", "observed_at"), market_of, counts,
    ),
)  # fmt: skip


def is_price_list(columns: Iterable[str]) -> bool:
    """Whether rows of these columns are prices of instance types."""
    return _form_of(set(columns)) is not None


def resembles_price_list(columns: Iterable[str]) -> bool:
    """Whether some of these columns are those of a price list."""
    own = set(columns)
    return any(own.intersection((*form.region, *form.instance)) for form in _FORMS)


def _form_of(columns: set[str]) -> _Form | None:
    for form in _FORMS:
        prices = [name for names in form.prices.values() for name in names]
        if form.needs <= columns and all(
            columns.intersection(names) for names in (form.region, form.instance, prices)
        ):
            return form
    made = {one.column for one in usual_names(columns).values()}
    return _form_of(columns | made) if made - columns else None


def cloud_prices(
    table: Table, rates: Rates = USD_ONLY, factor: float = 1.0
) -> Iterator[CloudPrice]:
    """The prices in `table`. rates: USD per unit of each allowed currency. factor: USD per unit of
    the table's currency, for rows that name none. UserError names the position of an invalid
    row."""
    form = _form_of(set(table.columns))
    hosts: list[CloudPrice] = []
    gpus: dict[tuple[str, str, str], float] = {}
    split = _ACCELERATOR in table.columns
    named = usual_names(table.columns)
    begin = ""
    for place, row in table.rows:
        form = form or _form_of(set(row))
        begin = begin or place
        if form is None:  # A row of JSON whose price is null.
            continue
        row = with_usual_names(row, named or usual_names(row))
        if not form.keep(row):
            continue
        zone, instance = _text(row, form.region), _text(row, form.instance)
        accelerator = _text(row, (_ACCELERATOR,))
        of_gpu = not instance and accelerator != ""
        if not _NAME.match(zone) or not (of_gpu or _NAME.match(instance)):
            continue  # This row is not a price of an instance type.
        own = usd_per_h_factor(place, row, rates, factor)
        part = _REGION.match(zone)
        region = _text(row, ("region",))
        if not _NAME.match(region):
            region = part[1] if part else zone
        for market, names in form.prices.items():
            usd = _usd(place, row, names, own)
            if usd is None:
                continue
            market = market or form.market(row)
            if of_gpu:
                count = max(1.0, finite_number(row.get("accelerator_count")) or 1.0)
                key = zone, market, accelerator.upper()
                gpus[key] = min(usd / count, gpus.get(key, usd / count))
                continue
            price = CloudPrice(
                region,
                zone,
                instance.lower(),
                market,
                usd,
                _when_ms(place, row, form.time),
            )
            if accelerator or not (split or price.instance in MACHINES):
                yield price
            elif price.instance in MACHINES:
                hosts.append(price)
            else:
                yield replace(price, lacks=f"GPUs: {_ACCELERATOR} is empty")
    if form is None:
        raise UserError(f"{begin}: {table.shown[:60]!r} begins no price list; expected {KNOWN}")
    for host in hosts:
        yield _with_gpus(host, gpus) if split or gpus else host


def _with_gpus(host: CloudPrice, gpus: Mapping[tuple[str, str, str], float]) -> CloudPrice:
    """The price of a host with its GPUs. gpus: USD per hour of one GPU, by zone, market, name."""
    machine = MACHINES.get(host.instance)
    names = machine.accelerator if machine else ()
    for name in names:
        each = gpus.get((host.zone, host.market, name))
        if each is not None and machine is not None:
            return replace(host, usd_per_h=round(host.usd_per_h + machine.gpus * each, 6))
    return replace(host, lacks=f"its GPUs: no row of {' or '.join(names) or 'a GPU'}")


def _text(row: Row, names: tuple[str, ...]) -> str:
    return next((str(row[name]).strip() for name in names if row.get(name)), "")


def _usd(place: str, row: Row, names: tuple[str, ...], factor: float) -> float | None:
    name = next((name for name in names if row.get(name) not in (None, "")), None)
    if name is None:
        return None
    value = row[name]
    if isinstance(value, str) and value.strip().lower() in _EMPTY:
        return None
    usd = finite_number(bare_amount(value) if isinstance(value, str) else value)
    if usd == 0.0:  # A placeholder of a node that is not sold this way.
        return None
    if usd is None or not 0.0 <= factor * usd <= _MOST_USD:
        raise UserError(
            f"{place}: {name}: {str(value)[:40]!r} is not allowed; allowed: 0 to {_MOST_USD:g} USD "
            "per hour"
        )
    return factor * usd


def _when_ms(place: str, row: Row, names: tuple[str, ...]) -> float | None:
    name = next((name for name in names if row.get(name) not in (None, "")), None)
    if name is None:
        return None
    found = date_ms(row[name])
    if found is None:
        raise UserError(f"{place}: {name}: {str(row[name])[:40]!r} is no date")
    return found


# -- prices by pool -----------------------------------------------------------------------------


def prices_of_pools(
    name: str, prices: Iterable[CloudPrice], instances: Mapping[str, str]
) -> list[tuple[float | None, str, float]]:
    """(ms since 1970 or None, pool, USD per node and hour) for each change of a pool's price.

    instances: the instance type of each declared pool. The price of a pool is the lowest price
    among the zones of its region. UserError: no price belongs to a declared pool, or the prices of
    a pool leave out its GPUs.
    """
    found: list[tuple[float | None, str, float]] = []
    zones: dict[str, dict[str, float]] = {}
    seen: set[str] = set()
    lacking: dict[str, CloudPrice] = {}
    for one in sorted(prices, key=lambda price: price.at_ms or 0.0):
        seen.add(f"{one.region}/{one.instance}/{one.market}")
        for pool, instance in instances.items():
            region, _, market = pool.split("/")
            if instance.lower() != one.instance or market != one.market:
                continue
            if region.lower() not in (one.region.lower(), one.zone.lower()):
                continue
            if one.lacks:
                lacking.setdefault(pool, one)
                continue
            of_zone = zones.setdefault(pool, {})
            before = min(of_zone.values(), default=None)
            of_zone[one.zone] = one.usd_per_h
            now = min(of_zone.values())
            if now != before:
                found.append((one.at_ms, pool, now))
    for pool in sorted(lacking.keys() - zones.keys()):
        one = lacking[pool]
        raise UserError(
            f"{name}: {pool}: {one.instance} in {one.zone}: the price is of a host without "
            f"{one.lacks}"
        )
    if not found:
        declared = ", ".join(f"{pool} ({kind})" for pool, kind in sorted(instances.items())[:5])
        has = ", ".join(pool[:100] for pool in sorted(seen)[:3]) or "no price of an instance"
        raise UserError(
            f"{name}: no price is of a declared pool; it has {has}; pools with an instance type: "
            f"{declared or 'none (gpu: g6.xlarge declares one)'}"
        )
    return found


def without_future(prices: Sequence[CloudPrice], now_ms: float) -> list[CloudPrice]:
    """`prices` without those dated after `now_ms`, because a price of the future would hide the
    present one. If all prices of an instance type are dated ahead, they are kept. now_ms: in ms
    since 1970."""
    present = {_place(one) for one in prices if (one.at_ms or 0.0) <= now_ms}
    return [one for one in prices if (one.at_ms or 0.0) <= now_ms or _place(one) not in present]


def _place(price: CloudPrice) -> tuple[str, str, str, str]:
    return price.region, price.zone, price.instance, price.market


def newest(
    found: Iterable[tuple[float | None, str, float]],
) -> dict[str, float]:
    """The last price of each pool."""
    return {pool: usd for _, pool, usd in found}


def pools_by_name(prices: Iterable[CloudPrice]) -> dict[str, str]:
    """Pools named after the cloud's instance types (`us-east-1/g6.xlarge/spot`), for use without a
    configuration."""
    return {f"{p.region}/{p.instance}/{p.market}": p.instance for p in prices if not p.lacks}
