"""The fleet's day: twelve models split by client from a record of ServeGen, and its market.

usage: python -m loadtests.fleet_day --traces DIR --out DIR

The clients of the record are ranked by their mean rate and dealt to the models in turn, so that
each model has large and small clients. Spot prices follow a mean-reverting walk around the
configured price, and spot nodes a walk below the configured number. On-demand prices are constant,
and the on-demand nodes of one pool are halved for two hours.

The command writes the files of streams/data: the first day of the record, with the clients of each
model numbered in a row, and its lengths.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Market
from loadtests.results.entry import Figures
from loadtests.scorecard import compared
from streams.files.shoal_yaml import load_config
from streams.tools.backtest.backtest_demand import DEFAULT_CONFIG
from streams.tools.backtest.demand_options import Demand

CONFIG = DEFAULT_CONFIG.with_name("fleet.yaml")
RECORD = CONFIG.with_name("fleet_clients_10min.csv.gz")
CLIENTS = {
    "chat": "0-10", "assist": "11-18", "code": "19-27", "review": "28-37", "agent": "38-43",
    "mini": "44-50", "translate": "51-59", "search": "60-69", "caption": "70-78",
    "extract": "79-86", "moderate": "87-95", "describe": "96-100",
}  # fmt: skip
INPUTS = tuple(
    f"streams/data/{name}"
    for name in ("fleet.yaml", RECORD.name, "fleet_token_hist.json.gz",
                 "fleet_tokens_by_window.csv.gz")
)  # fmt: skip
DAY_S = 86_400
FROM_S, TO_S = 36_000.0, 57_600.0
"""A peak, a fall by nearly half within two hours, and a rise."""
BASELINES = ("hpa-utilization", "hpa-rate", "skyserve", "fixed-peak")
SEED = 20260
LARGE = ("chat", "assist", "code", "review", "agent", "mini", "translate", "search")
IMAGE = ("caption", "extract", "moderate", "describe")
_STEP_S = 1800
_REVERSION, _PRICE_SIGMA, _NODES_SIGMA = 0.15, 0.12, 0.15
"""Per step: part of the way back to the mean, and the standard deviation of the logarithm of the
price and of the share of nodes."""
_OUTAGE_S = 36_000, 43_200


def dealt_clients(record: Path, models: Sequence[str]) -> dict[str, list[str]]:
    """Client numbers by model: the clients of `record`, by falling rate, dealt in turn."""
    rates: dict[str, float] = defaultdict(float)
    with gzip.open(record, "rt") as lines:
        for row in csv.DictReader(lines):
            rates[row["client"]] += float(row["rate_rps"] or 0.0)
    ranked = sorted(rates, key=lambda client: (-rates[client], int(client)))
    return {model: ranked[index :: len(models)] for index, model in enumerate(models)}


def cut_day(traces: Path, folder: Path) -> dict[str, str]:
    """Write the first day of the larger record and its lengths. Returns each model's clients."""
    record = traces / "m-large_clients_10min.csv.gz"
    with gzip.open(record, "rt") as lines:
        head, *rows = csv.reader(lines)
    day = [row for row in rows if float(row[1]) < DAY_S and float(row[2] or 0.0) > 0.0]
    known = {row[0] for row in day}
    numbers: dict[str, int] = {}
    ranges = {}
    for model, clients in dealt_clients(record, (*LARGE, *IMAGE)).items():
        first = len(numbers)
        numbers |= {c: first + i for i, c in enumerate(c for c in clients if c in known)}
        ranges[model] = f"{first}-{len(numbers) - 1}"
    cut = sorted([str(numbers[row[0]]), *row[1:]] for row in day)
    cut.sort(key=lambda row: (int(row[0]), float(row[1])))
    _write_rows(folder / "fleet_clients_10min.csv.gz", [head, *cut])
    with gzip.open(traces / "m-large_tokens_by_window.csv.gz", "rt") as lines:
        head, *rows = csv.reader(lines)
    means = [row for row in rows if float(row[0]) < DAY_S]
    _write_rows(folder / "fleet_tokens_by_window.csv.gz", [head, *means])
    laws = gzip.decompress((traces / "m-large_token_hist.json.gz").read_bytes())
    (folder / "fleet_token_hist.json.gz").write_bytes(gzip.compress(laws, mtime=0))
    return ranges


def _write_rows(path: Path, rows: Sequence[Sequence[str]]) -> None:
    text = "".join(",".join(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def write_market(path: Path, cluster: Cluster, span_s: int) -> Path:
    """Write the prices and nodes over `span_s`."""
    random = np.random.default_rng(SEED)
    rows = []
    for pool in cluster.pools:
        if pool.market is not Market.SPOT:
            continue
        price = free = 0.0
        for at_s in range(0, span_s, _STEP_S):
            price += _PRICE_SIGMA * random.standard_normal() - _REVERSION * price
            free += _NODES_SIGMA * random.standard_normal() - _REVERSION * free
            usd = min(2.0, math.exp(price)) * pool.price_usd_per_h
            nodes = round(pool.max_nodes * min(1.0, max(0.1, 0.75 + free)))
            rows.append((at_s, pool.id, f"{usd:.4f}", nodes))
    scarce = next(pool for pool in cluster.pools if pool.market is Market.ON_DEMAND)
    begin_s, end_s = _OUTAGE_S
    rows.append((begin_s, scarce.id, "", scarce.max_nodes // 2))
    rows.append((end_s, scarce.id, "", scarce.max_nodes))
    rows.sort(key=lambda row: row[:2])
    with path.open("w", newline="") as out:
        csv.writer(out).writerows([("time", "pool", "price", "nodes"), *rows])
    return path


def measure(seed: int) -> Figures:
    """The figures of every policy for the hours from FROM_S to TO_S."""
    cluster = load_config(CONFIG, cautious=False).cluster
    with tempfile.TemporaryDirectory() as folder:
        market = write_market(Path(folder) / "market.csv", cluster, DAY_S)
        traces = tuple(f"{model}={RECORD}#{clients}" for model, clients in CLIENTS.items())
        demand = Demand(traces, CONFIG, from_s=FROM_S, to_s=TO_S, supply=(str(market),), fluid=True)
        return compared(demand, seed, BASELINES)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files of streams/data. Returns exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.fleet_day")
    parser.add_argument("--traces", type=Path, required=True, help="the folder of the records")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the files")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    for model, clients in cut_day(args.traces, args.out).items():
        print(f"{model}=fleet_clients_10min.csv.gz#{clients}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
