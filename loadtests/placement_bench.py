"""Exact placement on a file of cases: the optimum and the CPU seconds of each.

`python -m loadtests.placement_bench CASES.json.gz --out OUT.json` writes `[{"id", "best",
"seconds"}]`. A case: {"id", "layers", "nodes": [configuration index, ...], "throughput": [S -
1][configuration][layers - 1]} and, if known, "best".

seconds: CPU time of one solve in this process, averaged over --repeat solves. It includes the check
of the table and the search. It excludes reading the file and compilation.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from autoscaler.domain.validation import InvalidValue
from loadtests.placement import PlacementSearch

_TOLERANCE = 1e-6


def read_cases(path: Path) -> list[dict[str, Any]]:
    """The cases of a JSON file, plain or gzipped."""
    raw = path.read_bytes()
    cases = orjson.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    if not isinstance(cases, list) or not cases:
        raise InvalidValue(str(path), type(cases).__name__, "a list with at least one case")
    return cases


def measure(case: dict[str, Any], repeat: int) -> dict[str, Any]:
    """Solve one case `repeat` times. Returns its optimum and the mean CPU seconds."""
    table = np.array(case["throughput"], dtype=np.float64)
    if table.ndim != 3 or table.shape[2] != case["layers"]:
        raise InvalidValue(f"case {case['id']}: throughput", table.shape, "(S, C, layers)")
    nodes = [int(node) for node in case["nodes"]]
    started = time.process_time()
    for _ in range(repeat):
        found = PlacementSearch(table).best(nodes)
    seconds = (time.process_time() - started) / repeat
    return {"id": case["id"], "best": found.req_per_s, "seconds": seconds}


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark. Exit codes: 1 a known optimum was missed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.placement_bench")
    parser.add_argument("cases", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=100)
    args = parser.parse_args(argv)
    try:
        cases = read_cases(args.cases)
        measure(cases[0], 1)  # This compiles before the measurements.
        results = [measure(case, max(1, args.repeat)) for case in cases]
    except (InvalidValue, KeyError, OSError, ValueError) as error:
        print(f"placement_bench: {error!r}", file=sys.stderr)
        return 2
    args.out.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    micros = np.array([row["seconds"] for row in results]) * 1e6
    known = [(case, row) for case, row in zip(cases, results, strict=True) if "best" in case]
    missed = [
        row["id"]
        for case, row in known
        if abs(row["best"] - case["best"]) > _TOLERANCE * max(1.0, abs(case["best"]))
    ]
    print(
        f"{len(results)} cases: mean {micros.mean():.1f} µs, "
        f"p95 {np.percentile(micros, 95):.1f} µs, max {micros.max():.1f} µs of CPU per solve; "
        f"{len(known) - len(missed)} of {len(known)} known optima met"
    )
    if missed:
        print(f"missed: {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
