"""Price lists of clouds: the rows that belong to a pool, and the price of a
pool at a given time.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streams.files.cloud_prices import cloud_prices, prices_of_pools
from streams.files.currencies import parse_rates
from streams.files.feed_files import read_feed
from streams.files.tables import table_of
from streams.files.user_errors import UserError
from topics.records import Price

POOLS = {
    "us-east-1/l4/spot": "g6.xlarge",
    "us-east-1/l4/on-demand": "g6.xlarge",
    "us-east-1b/near/spot": "g6.xlarge",
    "eastus/h100/spot": "Standard_ND96isr_H100_v5",
    "eastus/h100/on-demand": "Standard_ND96isr_H100_v5",
}


def aws(zone: str, usd: str, time: str, product: str = "Linux/UNIX") -> dict[str, str]:
    return {
        "AvailabilityZone": zone, "InstanceType": "g6.xlarge", "ProductDescription": product,
        "SpotPrice": usd, "Timestamp": time,
    }  # fmt: skip


AWS = {
    "SpotPriceHistory": [  # newest first, as in the answers of AWS
        aws("us-east-1b", "0.50", "2026-11-20T10:00:00+00:00"),
        aws("us-east-1a", "0.40", "2026-11-20T09:30:00+00:00"),
        aws("us-east-1a", "9.99", "2026-11-20T09:20:00+00:00", "Windows"),
        aws("us-east-1b", "0.45", "2026-11-20T09:10:00+00:00"),
        aws("us-east-1a", "0.30", "2026-11-20T09:00:00+00:00"),
    ]
}


def azure(sku: str, usd: float, **changes: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD", "retailPrice": usd, "unitPrice": usd, "armRegionName": "eastus",
        "effectiveStartDate": "2026-01-01T00:00:00Z", "skuName": sku, "meterName": sku,
        "productName": "Virtual Machines NDsrH100v5 Series", "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour", "type": "Consumption",
        "armSkuName": "Standard_ND96isr_H100_v5", **changes,
    }  # fmt: skip


AZURE = {
    "BillingCurrency": "USD",
    "Items": [
        azure("ND96isrH100v5", 98.32),
        azure("ND96isrH100v5 Spot", 19.66),
        azure("ND96isrH100v5 Low Priority", 20.0),
        azure("ND96isrH100v5", 120.0, productName="Virtual Machines NDsrH100v5 Series Windows"),
        azure("ND96isrH100v5", 500_000.0 / 8, type="Reservation", unitOfMeasure="1 Hour"),
    ],
    "Count": 5,
}


def pools(value: Any) -> list[tuple[float | None, str, float]]:
    text = value if isinstance(value, str) else json.dumps(value)
    return prices_of_pools("f", cloud_prices(table_of("f", text, "prices")), POOLS)


def test_a_region_has_the_price_of_its_cheapest_zone_without_windows() -> None:
    at = 1_763_629_200_000.0 + 365 * 86_400_000.0  # 2026-11-20 09:00
    assert pools(AWS) == [
        (at, "us-east-1/l4/spot", 0.30),
        (at + 600_000, "us-east-1b/near/spot", 0.45),
        (at + 1_800_000, "us-east-1/l4/spot", 0.40),
        (at + 3_600_000, "us-east-1b/near/spot", 0.50),
    ]


def test_other_products_in_the_azure_list_are_ignored() -> None:
    found = {(pool, usd) for _, pool, usd in pools(AZURE)}
    assert found == {("eastus/h100/on-demand", 98.32), ("eastus/h100/spot", 19.66)}


@pytest.mark.parametrize(
    "text",
    [
        "InstanceType,AcceleratorName,vCPUs,Price,Region,SpotPrice,AvailabilityZone\n"
        "g6.xlarge,L4,4,0.8,us-east-1,0.3,us-east-1a\n",
        '[{"region": "us-east-1", "instance_type": "g6.xlarge", "price": 0.8},'
        ' {"region": "us-east-1", "instance_type": "g6.xlarge", "price": "$0.3", "market": "spot"},'
        ' {"region": "us-east-1", "instance_type": "g6.xlarge", "price": 0.1, '
        '"market": "reserved"}]',
    ],
)
def test_any_table_with_region_instance_type_and_price_is_a_price_list(text: str) -> None:
    assert {(pool, usd) for _, pool, usd in pools(text)} == {
        ("us-east-1/l4/on-demand", 0.8),
        ("us-east-1/l4/spot", 0.3),
    }


def test_a_feed_publishes_the_newest_price_of_each_pool() -> None:
    raw = json.dumps(AWS).encode()
    assert read_feed("prices", raw, "f", 5, POOLS) == [
        Price("us-east-1/l4/spot", 0.40, 5),
        Price("us-east-1b/near/spot", 0.50, 5),
    ]
    assert read_feed("prices", raw, "f", 5) == [Price("us-east-1/g6.xlarge/spot", 0.40, 5)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"SpotPriceHistory": [aws("us-east-1a", "cheap", "2026-11-20")]}, "row 1: spot_price: 'c"),
        ({"SpotPriceHistory": [aws("us-east-1a", "1", "soon")]}, "row 1: timestamp: 'soon' is no"),
        (
            {"Items": [azure("x", 1.0, currencyCode="EUR")]},
            "currency_code: 'EUR' is not allowed; allowed: USD",
        ),
        ({"Items": [{"a": 1}]}, "begins no price list; expected AWS describe-spot-price-history"),
        (
            {"SpotPriceHistory": [aws("eu-west-1a", "1", "2026-11-20T00:00:00Z")]},
            "no price is of a declared pool; it has eu-west-1/g6.xlarge/spot",
        ),
        (
            "region,instance_type,price\nus-east-1,g6.xlarge,-1\n",
            ":2: price: '-1' is not allowed; allowed: 0 to 100000 USD",
        ),
    ],
)
def test_an_invalid_price_list_gives_one_error_line(value: Any, said: str) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(UserError) as caught:
        read_feed("prices", text.encode(), "f", 5, POOLS)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_price_list_states_no_availability(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="shoal feed prices"):
        read_feed("availability", json.dumps(AWS).encode(), "f", 5, POOLS)


@pytest.mark.parametrize("name", ["us-east-1/l4/spot", "a\nb", "x" * 5000, "", "g6 xlarge"])
def test_a_row_with_an_invalid_instance_type_is_ignored(name: str) -> None:
    odd = {**aws("us-east-1a", "0.1", "2026-11-20T00:00:00Z"), "InstanceType": name}
    good = aws("us-east-1a", "0.3", "2026-11-20T00:00:00Z")
    raw = json.dumps({"SpotPriceHistory": [odd, good]}).encode()
    assert read_feed("prices", raw, "f", 5) == [Price("us-east-1/g6.xlarge/spot", 0.3, 5)]
    with pytest.raises(UserError, match="it has no price of an instance") as caught:
        read_feed("prices", json.dumps({"SpotPriceHistory": [odd]}).encode(), "f", 5)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["currency", "Currency", "priceCurrency", "Billing Currency"])
@pytest.mark.parametrize("currency", ["EUR", "CNY", "GBP"])
def test_a_list_in_another_currency_is_refused_by_name(column: str, currency: str) -> None:
    text = f"region,instance_type,price,{column}\nus-east-1,g6.xlarge,0.8,{currency}\n"
    with pytest.raises(UserError, match=rf"urrency: '{currency}' is not allowed; allowed: USD"):
        read_feed("prices", text.encode(), "f", 5, POOLS)


def test_a_document_in_another_currency_is_refused_by_name() -> None:
    rows = [{"region": "us-east-1", "instance_type": "g6.xlarge", "price": 0.8}]
    raw = json.dumps({"BillingCurrency": "EUR", "Items": rows}).encode()
    with pytest.raises(UserError, match="billing_currency: 'EUR' is not allowed"):
        read_feed("prices", raw, "f", 5, POOLS)


@pytest.mark.parametrize("column", ["unit", "price_unit", "unitOfMeasure", "billing_period", "per"])
@pytest.mark.parametrize(
    "unit", ["month", "1 Month", "second", "USD/s", "per minute", "GPU-month", "EUR/h", "100 Hours"]
)
def test_a_list_in_another_unit_is_refused_by_name(column: str, unit: str) -> None:
    text = f"region,instance_type,price,{column}\nus-east-1,g6.xlarge,0.8,{unit}\n"
    with pytest.raises(UserError, match=rf"'{unit}' is not allowed; allowed: USD per hour"):
        read_feed("prices", text.encode(), "f", 5, POOLS)


@pytest.mark.parametrize("unit", ["1 Hour", "Hrs", "hour", "USD/h", "USD per hour", "$/hr", ""])
def test_a_list_per_hour_in_usd_is_read(unit: str) -> None:
    text = f"region,instance_type,price,unit,currency\nus-east-1,g6.xlarge,0.8,{unit},usd\n"
    assert read_feed("prices", text.encode(), "f", 5, POOLS) == [
        Price("us-east-1/l4/on-demand", 0.8, 5)
    ]


def test_a_price_of_the_future_does_not_hide_the_present_one() -> None:
    """If every price is dated ahead, the machine's clock may be wrong, and the last one counts."""
    now = datetime.now(UTC)
    row = lambda usd, days: aws("us-east-1a", usd, (now + timedelta(days)).isoformat())  # noqa: E731
    raw = json.dumps({"SpotPriceHistory": [row("0.40", -1), row("9.0", 30)]}).encode()
    assert [one.usd_per_node_h for one in read_feed("prices", raw, "f", 5, POOLS)] == [0.40]
    raw = json.dumps({"SpotPriceHistory": [row("0.40", 1), row("0.50", 30)]}).encode()
    assert [one.usd_per_node_h for one in read_feed("prices", raw, "f", 5, POOLS)] == [0.50]


SKYPILOT = """InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone
,L4,1.0,0.5609,0.2245,us-central1,us-central1-a
,L4,2.0,1.1218,0.4490,us-central1,us-central1-a
g2-standard-4,,,0.14586,0.05834,us-central1,us-central1-a
g2-standard-24,,,0.8752,,us-central1,us-central1-a
a2-highgpu-1g,A100,1.0,3.67,1.57,us-central1,us-central1-a
a3-highgpu-8g,,,9.0,4.0,us-central1,us-central1-a
"""


def test_a_host_and_its_gpus_in_separate_rows_are_one_price() -> None:
    """Two L4 of a g2-standard-24 cost two times one. A row that names its GPU has the whole
    price."""
    found = {p.pool: p.usd_per_node_h for p in read_feed("prices", SKYPILOT.encode(), "f", 5)}
    assert found == {
        "us-central1/g2-standard-4/on-demand": pytest.approx(0.70676),
        "us-central1/g2-standard-4/spot": pytest.approx(0.28284),
        "us-central1/g2-standard-24/on-demand": pytest.approx(0.8752 + 2 * 0.5609),
        "us-central1/a2-highgpu-1g/on-demand": 3.67,
        "us-central1/a2-highgpu-1g/spot": 1.57,
    }


@pytest.mark.parametrize(
    ("instance", "rows", "said"),
    [
        ("a3-highgpu-8g", SKYPILOT, "a host without its GPUs: no row of H100"),
        ("n1-standard-8", SKYPILOT.replace("g2-standard-4", "n1-standard-8"),
         "a host without GPUs: accelerator_name is empty"),
    ],
)  # fmt: skip
def test_a_host_without_its_gpus_is_no_price(instance: str, rows: str, said: str) -> None:
    pools = {"us-central1/x/on-demand": instance, "us-central1/y/on-demand": "a2-highgpu-1g"}
    with pytest.raises(UserError, match=said):
        read_feed("prices", rows.encode(), "f", 5, pools)
    other = rows + f"{instance},GPU,1,5.5,,us-central1,us-central1-b\n"
    found = {p.pool: p.usd_per_node_h for p in read_feed("prices", other.encode(), "f", 5, pools)}
    assert found == {"us-central1/x/on-demand": 5.5, "us-central1/y/on-demand": 3.67}


@pytest.mark.parametrize(
    ("columns", "cells", "usd"),
    [
        ("price,currency", "2.0,EUR", 2.16),
        ("price,currency", "2.0,usd", 2.0),
        ("price,unit", "2.0,1 Hour", 2.0),
        ("price,unit", "2.0,USD/Hrs", 2.0),
        ("price,unit,currency", "2.0,per hour,EUR", 2.16),
    ],
)
def test_a_currency_with_a_rate_is_converted(columns: str, cells: str, usd: float) -> None:
    text = f"region,instance_type,{columns}\nus-east-1,g6.xlarge,{cells}\n"
    (price,) = read_feed("prices", text.encode(), "f", 5, None, parse_rates(["EUR=1.08"]))
    assert price.usd_per_node_h == pytest.approx(usd)


def test_the_currency_of_a_document_is_converted_and_a_row_goes_first() -> None:
    rows = [{"armRegionName": "r", "armSkuName": name, "retailPrice": 1.0} for name in ("s", "t")]
    rows[1]["currencyCode"] = "USD"
    raw = json.dumps({"BillingCurrency": "EUR", "Items": rows}).encode()
    found = read_feed("prices", raw, "f", 5, None, parse_rates(["EUR=1.08"]))
    assert sorted(one.usd_per_node_h for one in found) == [1.0, 1.08]


@pytest.mark.parametrize("text", ["EUR", "EUR=", "eur=1", "EUR=0", "EUR=nan", "USD=2", "EURO=1"])
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="such as EUR="):
        parse_rates([text])


@pytest.mark.parametrize(
    ("columns", "other"),
    [
        ("os", "Windows"), ("operating_system", "RHEL"), ("platform", "Windows with SQL"),
        ("tenancy", "Dedicated"), ("term", "1yr"), ("purchase_option", "Reserved"),
        ("lease_contract_length", "3yr"), ("pricing_model", "No Upfront"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_prices_of_other_conditions_are_ignored(columns: str, other: str, first: bool) -> None:
    usual = {"os": "Linux", "tenancy": "shared"}.get(columns, "On-Demand")
    rows = [f"us-east-1,g6.xlarge,{other},0.5", f"us-east-1,g6.xlarge,{usual},0.8"]
    text = f"region,instance_type,{columns},price\n" + "\n".join(rows if first else rows[::-1])
    assert [one.usd_per_node_h for one in read_feed("prices", text.encode(), "f", 5)] == [0.8]


def test_a_column_tells_spot_from_on_demand() -> None:
    text = "region,instance_type,capacity_type,price\n" + "".join(
        f"us-east-1,g6.xlarge,{kind},{usd}\n" for kind, usd in [("On Demand", 0.8), ("Spot", 0.3)]
    )
    found = {one.pool: one.usd_per_node_h for one in read_feed("prices", text.encode(), "f", 5)}
    assert found == {"us-east-1/g6.xlarge/on-demand": 0.8, "us-east-1/g6.xlarge/spot": 0.3}


@pytest.mark.parametrize("missing", ["", "-", "null", "N/A", "0", "0.00"])
def test_a_price_that_is_missing_or_zero_is_no_price(missing: str) -> None:
    text = f"region,instance_type,price,spot_price\nus-east-1,g6.xlarge,0.8,{missing}\n"
    found = [one.pool for one in read_feed("prices", text.encode(), "f", 5)]
    assert found == ["us-east-1/g6.xlarge/on-demand"]


def test_a_document_whose_first_price_is_null_is_read() -> None:
    rows = [
        {"region": "us-east-1", "instance_type": "g6.xlarge", "price": usd} for usd in (None, 2)
    ]
    found = read_feed("prices", json.dumps({"items": rows}).encode(), "f", 5)
    assert [one.usd_per_node_h for one in found] == [2.0]


@pytest.mark.parametrize(
    "column",
    ["Price ($/hr)", "Hourly Price", "price_per_hour", "cost_usd_per_hour", "Price (USD/h)"],
)
def test_a_price_column_may_state_its_unit(column: str) -> None:
    text = f"region,instance_type,{column},price per month\nus-east-1,g6.xlarge,0.8,580\n"
    assert [one.usd_per_node_h for one in read_feed("prices", text.encode(), "f", 5)] == [0.8]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("Price (EUR/h)", "currency: 'EUR' is not allowed"),
        ("monthly_price", "unit: 'monthly' is not allowed"),
        ("Price per GPU hour", "unit: 'gpu' is not allowed"),
        ("performance", "begins no price list; expected AWS"),
    ],
)
def test_a_column_of_other_prices_is_refused(column: str, said: str) -> None:
    text = f"region,instance_type,{column}\nus-east-1,g6.xlarge,0.8\n"
    with pytest.raises(UserError, match=said):
        read_feed("prices", text.encode(), "f", 5)


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("spot", ("False", "True")),
        ("is_spot", ("0", "1")),
        ("preemptible", ("no", "yes")),
        ("lifecycle", ("on-demand", "spot")),
        ("provisioning", ("STANDARD", "SPOT")),
    ],
)
def test_a_spot_price_is_no_on_demand_price(column: str, cells: tuple[str, str]) -> None:
    """A column that Shoal does not know by its name may state the market."""
    rows = [
        f"us-east-1,g6.xlarge,{usd},{cell}\n" for usd, cell in zip((0.8, 0.3), cells, strict=True)
    ]
    text = f"location,instance_name,price,{column}\n{''.join(rows)}"
    found = {one.pool: one.usd_per_node_h for one in read_feed("prices", text.encode(), "f", 5)}
    assert found == {"us-east-1/g6.xlarge/on-demand": 0.8, "us-east-1/g6.xlarge/spot": 0.3}


@pytest.mark.parametrize(
    ("zone", "region"), [("US-CA-1", "US"), ("AD-1", "us-ashburn-1"), ("1", "westeurope")]
)
def test_a_region_of_its_own_column_holds_its_zones(zone: str, region: str) -> None:
    text = (
        "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone\n"
        f"1x_H100_SECURE,H100,1.0,2.4,,{region},{zone}\n"
        f"1x_H100_SECURE,H100,1.0,2.9,,elsewhere,{zone}\n"
    )
    pools = {f"{region.lower()}/h100/on-demand": "1x_H100_SECURE"}
    found = read_feed("prices", text.encode(), "f", 5, pools)
    assert [one.usd_per_node_h for one in found] == [2.4]


@pytest.mark.parametrize("cell", ["$0.8048 hourly", "$0.8048/hr", "US$ 0.8048", "0.8048 USD/h"])
def test_a_price_may_state_its_unit(cell: str) -> None:
    text = f"Region\tAPI Name\tLinux On Demand cost\nus-east-1\tg6.xlarge\t{cell}\n"
    assert [one.usd_per_node_h for one in read_feed("prices", text.encode(), "f", 5)] == [0.8048]


def test_a_region_that_is_no_name_is_taken_from_the_zone() -> None:
    text = "region,zone,instance_type,price\nus/east,us-east-1a,g6.xlarge,0.8\n"
    assert [one.pool for one in read_feed("prices", text.encode(), "f", 5)] == [
        "us-east-1/g6.xlarge/on-demand"
    ]


def test_commas_are_read_before_a_decimal_point_only() -> None:
    """3,673 may be 3.673 or 3673."""
    text = "Region\tAPI Name\tLinux On Demand cost\nus-east-1\tg6.xlarge\t%s\n"
    found = read_feed("prices", (text % "$1,234.50 hourly").encode(), "f", 5)
    assert [one.usd_per_node_h for one in found] == [1234.5]
    with pytest.raises(UserError, match="3,673"):
        read_feed("prices", (text % "$3,673 hourly").encode(), "f", 5)


@pytest.mark.parametrize("cell", ["$0.8048 monthly", "0.8048 EUR/h", "0.8 per GPU hour"])
def test_a_price_in_another_unit_is_refused(cell: str) -> None:
    text = f"region,instance_type,price\nus-east-1,g6.xlarge,{cell}\n"
    with pytest.raises(UserError, match=r"f:2: price: .* allowed: 0 to 100000 USD per hour"):
        read_feed("prices", text.encode(), "f", 5)
