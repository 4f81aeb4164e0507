"""The fleet's day: twelve models split by client from two of ServeGen's records, and its market.

usage: python -m loadtests.fleet_day --traces DIR --out DIR [--week] [--scale X] [--cut]

Writes market.csv and prints the command `shoal backtest`. The recipe: the clients of a record are
ranked by their mean rate and dealt to the record's models in turn, so that each model has large and
small clients. Spot prices follow a mean-reverting walk around the configured price, and spot nodes
a walk below the configured number. On-demand prices are constant, and the on-demand nodes of one
pool are halved for two hours. --week takes all models from the record that covers a week.

--cut writes the small fleet of streams/data instead: the first day of that record, with the clients
of each model numbered in a row, and its lengths.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from autoscaler.domain.cluster import Cluster, Market
from streams.files.shoal_yaml import load_config
from streams.tools.backtest.backtest_demand import DEFAULT_CONFIG

CONFIG = DEFAULT_CONFIG.with_name("fleet.yaml")
DAY_S, WEEK_S = 86_400, 7 * 86_400
SEED = 20260
LARGE = ("chat", "assist", "code", "review", "agent", "mini", "translate", "search")
IMAGE = ("caption", "extract", "moderate", "describe")
SHARES = {"chat": 0.3, "assist": 0.3, "code": 0.6, "review": 0.6}
"""Factors of the rates of the large models, which few fleets serve at the rate of small ones."""
_IMAGE_SCALE = 4.0
"""The record of requests with images has a twentieth of the other record's rate."""
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


def trace_options(traces: Path, week: bool = False, scale: float = 1.0) -> list[str]:
    """The options --trace and --scale. traces: the folder of ServeGen's records."""
    by_record: Mapping[str, Sequence[str]] = (
        {"m-large": (*LARGE, *IMAGE)} if week else {"m-large": LARGE, "mm-image": IMAGE}
    )
    named, scales = [], []
    for name, models in by_record.items():
        record = traces / f"{name}_clients_10min.csv.gz"
        for model, clients in dealt_clients(record, models).items():
            named.append(f"{model}={record}#{','.join(clients)}")
            factor = scale * SHARES.get(model, 1.0) * (_IMAGE_SCALE if name == "mm-image" else 1.0)
            if factor != 1.0:
                scales.append(f"{model}={factor:g}")
    return ["--trace", *named, *(["--scale", *scales] if scales else [])]


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


def options(traces: Path, folder: Path, week: bool = False, scale: float = 1.0) -> list[str]:
    """All options of `shoal backtest` but the policies. Writes the market into `folder`."""
    span_s = WEEK_S if week else DAY_S
    cluster = load_config(CONFIG, cautious=False).cluster
    market = write_market(folder / "market.csv", cluster, span_s)
    return [
        "--fluid", "--config", str(CONFIG), "--to", f"{span_s}s", "--supply", str(market),
        *trace_options(traces, week, scale),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.fleet_day")
    parser.add_argument("--traces", type=Path, required=True, help="the folder of the records")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the market")
    parser.add_argument("--week", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="of all rates")
    parser.add_argument("--cut", action="store_true", help="write the files of streams/data")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.cut:
        for model, clients in cut_day(args.traces, args.out).items():
            print(f"{model}=fleet_clients_10min.csv.gz#{clients}")
        return 0
    print(shlex.join(["shoal", "backtest", *options(args.traces, args.out, args.week, args.scale)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
