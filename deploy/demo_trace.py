"""Make the traces of the demo's scenarios from three public traces.

python deploy/demo_trace.py --aibrix aibrix_8min_up_and_down.csv.gz \
    --mooncake mooncake_synthetic.jsonl.gz

surge.csv.gz:

- Azure LLM inference trace 2023 (streams/data/azure2023_conv.csv.gz, CC-BY 4.0): half an hour from
  its tenth minute on, of which every request is kept with a probability of `_AZURE_SHARES`.
- AIBrix "8 minutes up and down" (vllm-project/aibrix, Apache-2.0): every second request, from
  `_SURGE_AT_S` on, all for one model.

Times and lengths of the kept requests are unchanged.

roles.csv.gz: requests of one model that turn from long prompts to long answers and back.

- Mooncake "synthetic" (kvcache-ai/Mooncake, Apache-2.0): lengths of requests with 4,000 to 9,000
  tokens in and 100 to 300 out, for the first and the last third.
- Azure, as above: lengths of requests with 1,000 to 3,000 tokens in and 300 or more out, for the
  second third.

Arrivals are drawn with exponential gaps at the rates of `_ROLE_PHASES`. The same inputs give the
same bytes.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "streams" / "data"
_FROM_S, _LENGTH_S = 600.0, 1800.0
_SURGE_AT_S = 90.0
_AZURE_SHARES = (("chat", 0.15), ("code", 0.17), ("mini", 0.18))
_SURGE_MODEL = "mini"
_ROLE_PHASES = (("long prompts", 14.5), ("long answers", 24.0), ("long prompts", 14.5))
"""(lengths, requests/s) of each third."""
_ROLE_PHASE_S = 300.0
Row = tuple[int, str, int, int]
"""(ms, model, input tokens, output tokens)."""


def _table(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def azure_rows(path: Path, draw: random.Random) -> Iterator[Row]:
    """The kept requests of the Azure trace, spread over the models."""
    first: datetime | None = None
    for row in _table(path):
        at = datetime.fromisoformat(row["TIMESTAMP"][:26])
        first = first or at
        at_s = (at - first).total_seconds() - _FROM_S
        point = draw.random()
        if not 0.0 <= at_s < _LENGTH_S:
            continue
        for model, share in _AZURE_SHARES:
            point -= share
            if point < 0.0:
                sizes = int(row["ContextTokens"]), int(row["GeneratedTokens"])
                yield round(1000.0 * at_s), model, *sizes
                break


def surge_rows(path: Path) -> Iterator[Row]:
    """Every second request of the AIBrix trace, all for one model."""
    for index, row in enumerate(_table(path)):
        if index % 2 == 0:
            at_ms = round(1000.0 * _SURGE_AT_S) + int(row["timestamp_ms"])
            yield at_ms, _SURGE_MODEL, int(row["input_tokens"]), int(row["output_tokens"])


def role_rows(mooncake: Path, azure: Path, draw: random.Random) -> Iterator[Row]:
    """Requests of one model with lengths of both traces, and drawn arrivals."""
    with gzip.open(mooncake, "rt", encoding="utf-8") as file:
        sizes = [(one["input_length"], one["output_length"]) for one in map(json.loads, file)]
    answers = [(int(r["ContextTokens"]), int(r["GeneratedTokens"])) for r in _table(azure)]
    lengths = {
        "long prompts": [(r, w) for r, w in sizes if 4000 <= r <= 9000 and 100 <= w <= 300],
        "long answers": [(r, w) for r, w in answers if 1000 <= r <= 3000 and w >= 300],
    }
    for index, (phase, req_per_s) in enumerate(_ROLE_PHASES):
        at_s = draw.expovariate(req_per_s)
        while at_s < _ROLE_PHASE_S:
            at_ms = round(1000.0 * (index * _ROLE_PHASE_S + at_s))
            yield at_ms, "chat", *draw.choice(lengths[phase])
            at_s += draw.expovariate(req_per_s)


def write(name: str, rows: list[Row]) -> None:
    """Write a trace to streams/data."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("timestamp_ms", "model", "input_tokens", "output_tokens"))
    writer.writerows(rows)
    (DATA / name).write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def main() -> None:
    """Write the traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--aibrix", type=Path, required=True)
    parser.add_argument("--mooncake", type=Path, required=True)
    options = parser.parse_args()
    azure = DATA / "azure2023_conv.csv.gz"
    draw = random.Random(1)  # noqa: S311  a reproducible draw, no secret
    write("surge.csv.gz", sorted((*azure_rows(azure, draw), *surge_rows(options.aibrix))))
    write("roles.csv.gz", sorted(role_rows(options.mooncake, azure, draw)))


if __name__ == "__main__":
    main()
