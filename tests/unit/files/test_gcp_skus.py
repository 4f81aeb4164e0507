"""GCP's catalogue of SKUs becomes prices of machine types.

Rates of us-central1 and descriptions are those of the public catalogue; the sums are the hourly
prices that Google publishes for the machine types.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoscaler.simulation.supply_script import PriceChanged
from streams.files.cloud_prices import CloudPrice
from streams.files.feed_files import read_feed
from streams.files.gcp_skus import sku_prices, skus_of
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.tools.backtest.supply_files import TraceTime, load_supply

AT, AT_MS = "2026-11-20T00:00:00Z", 1_795_132_800_000.0


def sku(
    description: str, group: str, usd: float, usage: str = "OnDemand", unit: str = "h",
    at: str = AT, **price: Any,
) -> dict[str, Any]:  # fmt: skip
    units = int(usd)
    cost = {"currencyCode": "USD", "units": str(units), "nanos": round((usd - units) * 1e9)}
    return {
        "name": "services/6F81-5844-456A/skus/0000-0000-0000", "skuId": "0000-0000-0000",
        "description": description,
        "category": {"serviceDisplayName": "Compute Engine", "resourceFamily": "Compute",
                     "resourceGroup": group, "usageType": usage},
        "serviceRegions": ["us-central1", "us-east1"],
        "pricingInfo": [{"effectiveTime": at, "pricingExpression": {
            "usageUnit": unit, "tieredRates": [
                {"startUsageAmount": 0, "unitPrice": {**cost, **price}}]}}],
        "serviceProviderName": "Google",
    }  # fmt: skip


G2 = [
    sku("G2 Instance Core running in Americas", "CPU", 0.024988),
    sku("G2 Instance Ram running in Americas", "RAM", 0.002927, unit="GiBy.h"),
    sku("Nvidia L4 GPU running in Americas", "GPU", 0.56004),
]
MEGA = [
    sku("A3Plus Instance Core running in Americas", "CPU", 0.026924),
    sku("A3Plus Instance Ram running in Americas", "RAM", 0.002344, unit="GiBy.h"),
    sku("Nvidia H100 80GB Plus GPU running in Americas", "GPU", 10.344276),
]
NOISE = [
    sku("Nvidia H100 Mega 80GB GPU attached to DWS Defined Duration VMs running in Americas",
        "GPU", 4.423936),
    sku("Reserved Nvidia H100 80GB Mega GPU in Americas in Calendar Mode", "GPU", 4.841121),
    sku("Reserved Nvidia L4 GPU in Americas", "GPU", 0.0),
    sku("G2 Sole Tenancy Instance Ram running in Americas", "RAM", 9.0, unit="GiBy.h"),
    sku("G2 Custom Instance Core running in Americas", "CPU", 9.0),
    sku("Commitment v1: Nvidia L4 GPU running in Americas for 3 Years", "GPU", 0.2, "Commit3Yr"),
    sku("Storage PD Capacity", "PDStandard", 0.04, unit="GiBy.mo"),
]  # fmt: skip


def prices(*skus: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """USD per hour by region, machine type and market."""
    found = skus_of(json.dumps({"skus": list(skus), "nextPageToken": ""}))
    assert found is not None
    return {(p.region, p.instance, p.market): p.usd_per_h for p in sku_prices("f", found)}


@pytest.mark.parametrize("reverse", [False, True])
def test_a_machine_costs_the_sum_of_its_parts(reverse: bool) -> None:
    """The order of the SKUs does not matter. SKUs of other products are ignored."""
    skus = [*G2, *MEGA, *NOISE]
    found = prices(*(reversed(skus) if reverse else skus))
    assert found["us-central1", "g2-standard-4", "on-demand"] == pytest.approx(0.7068, abs=1e-4)
    assert found["us-central1", "g2-standard-96", "on-demand"] == pytest.approx(8.0032, abs=1e-3)
    assert found["us-east1", "a3-megagpu-8g", "on-demand"] == pytest.approx(92.74, abs=0.01)
    assert all(machine.startswith(("g2-", "a3-mega")) for _, machine, _ in found)
    assert not any(market == "spot" for *_, market in found)


def test_the_price_of_a_b200_covers_its_whole_machine() -> None:
    found = prices(sku("A4 Nvidia B200 (1 gpu slice) running in Americas", "GPU", 16.11))
    assert found["us-east1", "a4-highgpu-8g", "on-demand"] == pytest.approx(128.88)


def test_spot_is_told_by_usage_or_by_description() -> None:
    spot = [
        sku("Spot Preemptible G2 Instance Core running in Americas", "CPU", 0.01, "Preemptible"),
        sku("Spot Preemptible G2 Instance Ram running in Americas", "RAM", 0.001, unit="GiBy.h"),
        sku("Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas", "GPU", 0.22,
            "Preemptible"),
    ]  # fmt: skip
    found = prices(*G2, *spot)
    assert found["us-central1", "g2-standard-4", "spot"] == pytest.approx(0.04 + 0.016 + 0.22)
    assert found["us-central1", "g2-standard-4", "on-demand"] == pytest.approx(0.7068, abs=1e-4)


def test_the_newest_rate_counts_and_its_time_is_that_of_the_price() -> None:
    older = sku("Nvidia L4 GPU running in Americas", "GPU", 9.0, at="2026-01-01T00:00:00Z")
    for order in ([*G2, older], [older, *G2]):
        (l4,) = (
            p
            for p in sku_prices("f", order)
            if p.region == "us-east1" and p.instance == "g2-standard-4"
        )
        assert l4 == CloudPrice("us-east1", "us-east1", l4.instance, "on-demand", 0.706824, AT_MS)


def test_pages_may_be_lines_or_a_list() -> None:
    pages = [{"skus": G2[:2]}, {"skus": G2[2:], "nextPageToken": "x"}]
    for text in (
        "\n".join(map(json.dumps, pages)),
        json.dumps(pages, indent=2),
        json.dumps(G2),
        "\n".join(map(json.dumps, G2)),
    ):
        assert skus_of(text) == G2
    assert skus_of('{"us/l4/spot": 1.0}') is None
    assert skus_of('{"pricingInfo"') is None


@pytest.mark.parametrize(
    ("skus", "said"),
    [
        ([G2[2]], "f: no machine type has prices of its cores, memory and GPUs here; allowed: all"),
        ([{**G2[0], "pricingInfo": []}], "f: sku 1: not a SKU of GCP's billing catalogue"),
        ([G2[0], {"pricingInfo": []}], "f: sku 2: not a SKU of GCP's billing catalogue"),
        ([3], "f: sku 1: not a SKU"),
        ([sku("Nvidia L4 GPU running in Americas", "GPU", 1.0, currencyCode="EUR")],
         "f: sku 1: currencyCode: 'EUR' is not allowed; allowed: USD"),
        ([sku("Nvidia L4 GPU running in Americas", "GPU", 1.0, units="-4")],
         "f: sku 1: unitPrice: '-4' is not allowed; allowed: 0 to 1000 USD"),
        ([sku("Nvidia L4 GPU running in Americas", "GPU", 1.0, units="many")], "unitPrice: 'many'"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line(skus: list[Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        list(sku_prices("f", skus))
    assert str(caught.value).startswith(said) or said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_feed_and_the_supply_of_a_backtest_read_it(tmp_path: Path) -> None:
    raw = json.dumps({"skus": [*G2, *NOISE]}).encode()
    pools = {"us-central1/l4/on-demand": "g2-standard-4"}
    (price,) = read_feed("prices", raw, "f", 5, pools)
    assert (price.pool, round(price.usd_per_node_h, 4)) == ("us-central1/l4/on-demand", 0.7068)
    with pytest.raises(UserError, match="f: a price list; allowed with: shoal feed prices"):
        read_feed("availability", raw, "f", 5, pools)
    file, config = tmp_path / "skus.json", tmp_path / "shoal.yaml"
    file.write_bytes(raw)
    config.write_text(
        "regions: {us-central1: {l4: {gpu: g2-standard-4, max: 4, price: 1.0}}}\n"
        "models: {m: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}}}\n"
    )
    found = load_config(config)
    times = TraceTime(None, 60.0, found.instances)
    (event,) = load_supply([str(file)], found.cluster, 0.0, 0.0, times)
    assert isinstance(event, PriceChanged) and event.pool == "us-central1/l4/on-demand"
    assert event.usd_per_node_h == pytest.approx(0.7068, abs=1e-4)
