"""On-demand prices of AWS's price list API and offer files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from loadtests.malformed_seeds import AWS_OFFERS, AWS_OFFERS_CSV, AWS_PRODUCT
from streams.files.currencies import parse_rates
from streams.files.feed_files import read_feed
from streams.files.user_errors import UserError
from topics.records import Price

POOLS = {"us-east-1/l4/on-demand": "g6.xlarge", "us-east-1/l4/spot": "g6.xlarge"}


def product(price: dict[str, str] | None = None, unit: str = "Hrs", **changed: str) -> Any:
    dimension = {"unit": unit, "pricePerUnit": price or {"USD": "0.8048000000"}}
    attributes = {**AWS_PRODUCT["product"]["attributes"], **changed}
    return {
        "product": {"productFamily": "Compute Instance", "attributes": attributes, "sku": "X"},
        "terms": {"OnDemand": {"X.J": {"priceDimensions": {"X.J.6": dimension}}}},
    }


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"FormatVersion": "aws_v1", "PriceList": [json.dumps(AWS_PRODUCT)]}),
        json.dumps({"PriceList": [AWS_PRODUCT]}, indent=2),
        json.dumps([json.dumps(AWS_PRODUCT)]),
        json.dumps(AWS_PRODUCT),
        json.dumps(AWS_OFFERS),
        AWS_OFFERS_CSV,
    ],
    ids=["get-products", "objects", "list", "product", "offer file", "offer file in CSV"],
)
def test_every_form_gives_the_price_of_the_instance(text: str) -> None:
    assert read_feed("prices", text.encode(), "f", 5, POOLS) == [
        Price("us-east-1/l4/on-demand", 0.8048, 5)
    ]


def test_other_systems_tenancies_and_reservations_are_ignored() -> None:
    others = [
        product({"USD": "9"}, operatingSystem="Windows"),
        product({"USD": "9"}, tenancy="Dedicated"),
        product({"USD": "0"}, capacitystatus="UnusedCapacityReservation"),
        product({"USD": "9"}, preInstalledSw="SQL Web"), product({"USD": "9"}, unit="Quantity"),
        product({"USD": "9"}, marketoption="CapacityBlock"), product({"USD": "0.0000000000"}),
    ]  # fmt: skip
    text = json.dumps({"PriceList": [*others, product(), *others]})
    (price,) = read_feed("prices", text.encode(), "f", 5, POOLS)
    assert price.usd_per_node_h == 0.8048
    with pytest.raises(UserError, match="no price is of a declared pool"):
        read_feed("prices", json.dumps({"PriceList": others}).encode(), "f", 5, POOLS)


def test_an_endless_name_makes_no_endless_error() -> None:
    text = json.dumps({"PriceList": [product(instanceType="x" * 5000)]}).encode()
    with pytest.raises(UserError, match="no price is of a declared pool") as caught:
        read_feed("prices", text, "f", 5, POOLS)
    assert len(str(caught.value)) < 500


def test_a_price_in_yuan_needs_its_rate() -> None:
    text = json.dumps({"PriceList": [product({"CNY": "10"})]}).encode()
    with pytest.raises(UserError, match="product 1: pricePerUnit: 'CNY' is not allowed"):
        read_feed("prices", text, "f", 5, POOLS)
    (price,) = read_feed("prices", text, "f", 5, POOLS, parse_rates(["CNY=0.14"]))
    assert price.usd_per_node_h == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ([product({"USD": "much"})], "pricePerUnit: 'much' is not allowed"),
        (["{", json.dumps(AWS_PRODUCT)], "product 1: not JSON"),
        ([3, AWS_PRODUCT], "product 1: expected a product"),
    ],
)
def test_a_broken_product_is_refused_by_position(listed: list[Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_feed("prices", json.dumps({"PriceList": listed}).encode(), "f", 5, POOLS)
    assert said in str(caught.value)
