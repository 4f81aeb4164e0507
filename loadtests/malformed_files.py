"""Fuzz test of files from users and engines: each gives a value or a one-line error.

    python -m loadtests.malformed_files [--count 20000] [--seed 1] [traces results feeds starts ...]

Valid files (`malformed_seeds`, `malformed_engines`) get faults in bytes, cells, keys, lines and
nesting before they are read. Each failure is printed with its file and gives exit code 1.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.performance import catalog
from loadtests import malformed_engines as engines
from loadtests import malformed_seeds as seeds
from streams.files.benchmark_results import read_results
from streams.files.feed_files import read_feed
from streams.files.user_errors import UserError
from streams.tools.backtest.supply_files import TraceTime, load_supply
from streams.tools.replay.traces import Trace, load_trace, parse_columns

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.1, -0.0, 1e-320, 1e308, math.nan,
    math.inf, "", " ", "nan", "inf", "-inf", "1e999", "1_000", "٣", "0x10", "1,5", "12 tokens",
    "null", "yesterday", "2024-02-30", "0001-01-01", "9999-12-31T23:59:59-23:59", "20240101",
    "24:00", "\x00", "\ud83d\ude00", '"', "'", "a\nb", "x" * 5000, [], {}, [1], {"a": 1}, [[]],
    [{}], {"mean": {}}, {"avg": "x"}, "g6.xlarge", "us-east-1/l4/spot", "1767607200", 1767607200,
)  # fmt: skip
_BYTES = (b"\x00", b"\xff", b'"', b",", b"\n", b"\r", b"{", b"}", b"[", b"]", b":", b"\xef\xbb\xbf")
_DEEP = 3000


def spoilt(text: str, draw: random.Random) -> bytes:
    """Return `text` with one to four faults."""
    data = text.encode()
    for _ in range(draw.choice((1, 1, 1, 2, 2, 4))):
        data = draw.choice((_values, _values, _values, _cells, _cells, _lines, _bytes, _whole))(
            data, draw
        )
    return data


def _values(data: bytes, draw: random.Random) -> bytes:
    """Replace a value, a key or a row of a JSON file, or a cell of another file."""
    lines = data.split(b"\n")
    try:
        found = json.loads(data)
        spread = None
    except (ValueError, RecursionError):
        spread = draw.randrange(len(lines))
        try:
            found = json.loads(lines[spread])
        except (ValueError, RecursionError):
            return _cells(data, draw)
    places = list(_places(found))
    if places:
        inside, key = draw.choice(places)
        _change(inside, key, draw)
    made = json.dumps(found, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    if spread is None:
        return made
    lines[spread] = made
    return b"\n".join(lines)


def _change(inside: Any, key: Any, draw: random.Random) -> None:
    value = draw.choice(_VALUES)
    kind = draw.random()
    if kind < 0.6:
        inside[key] = value
    elif kind < 0.75 and isinstance(inside, dict):
        inside[f"{value}"[:50]] = inside.pop(key)
    elif kind < 0.9:
        del inside[key]
    elif isinstance(inside, list):
        inside.insert(key, draw.choice(_VALUES))
    else:
        inside[f"{key}_ms"] = inside[key]


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found


def _cells(data: bytes, draw: random.Random) -> bytes:
    """Replace, drop, duplicate or move a cell of a CSV file."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    cut = b";" if b";" in lines[0] else b","
    cells = lines[at].split(cut)
    cell = draw.randrange(len(cells))
    kind = draw.random()
    if kind < 0.6:
        cells[cell] = str(draw.choice(_VALUES)).encode("utf-8", "surrogatepass")
    elif kind < 0.75:
        del cells[cell]
    elif kind < 0.9:
        cells.insert(cell, draw.choice(cells))
    else:
        draw.shuffle(cells)
    lines[at] = cut.join(cells)
    return b"\n".join(lines)


def _lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    kind = draw.random()
    if kind < 0.3:
        del lines[at]
    elif kind < 0.6:
        lines.insert(at, draw.choice(lines))
    elif kind < 0.8:
        draw.shuffle(lines)
    else:
        lines = lines[:at] + lines[at:] * draw.choice((2, 150))
    return b"\n".join(lines)


def _bytes(data: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(data) + 1)
    kind = draw.random()
    if kind < 0.4:
        return data[:at] + draw.choice(_BYTES) + data[at:]
    if kind < 0.7:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    return data[:at] + data[at + draw.randrange(20) :]


def _whole(data: bytes, draw: random.Random) -> bytes:
    """Cut or compress the file, or change its encoding, line ends or depth of nesting."""
    kind = draw.randrange(8)
    if kind == 0:
        return data[: draw.randrange(len(data) + 1)]
    if kind == 1:
        return gzip.compress(data, mtime=0)
    if kind == 2:
        return gzip.compress(data, mtime=0)[: -draw.randrange(1, 20)]
    if kind == 3:
        return data.decode("utf-8", "replace").encode("utf-16")
    if kind == 4:
        return data.replace(b"\n", draw.choice((b"\r\n", b"\r", b"\n\n")))
    if kind == 5:
        return b"PAR1" + data
    if kind == 6:
        return b'{"a":' * _DEEP + data + b"}" * draw.choice((_DEEP, 0))
    return b"[" * _DEEP + data + b"]" * draw.choice((_DEEP, 0))


# -- checks of each kind of file ----------------------------------------------------------------


def read_trace(path: Path, seed: int, _: random.Random) -> None:
    """Read a trace; raises AssertionError if the result is no trace."""
    of_log = seeds.TRACES[seed] in seeds.ACCESS_LOGS
    _check_trace(load_trace(path, parse_columns("input=900,output=150" if of_log else "")))


def _check_trace(trace: Trace) -> None:
    count = len(trace.arrivals_ms)
    assert count
    assert len(trace.input_tokens) == len(trace.output_tokens) == count
    assert not trace.models or len(trace.models) == count
    assert len(trace.sessions) == len(trace.delays_ms)
    assert len(trace.sessions) in (0, count)
    assert all(math.isfinite(at) for at in trace.arrivals_ms)
    assert list(trace.arrivals_ms) == sorted(trace.arrivals_ms)
    assert min(*trace.input_tokens, *trace.output_tokens) >= 0
    assert all(delay == -1.0 or 0.0 <= delay < math.inf for delay in trace.delays_ms)


def read_result(path: Path, _: int, __: random.Random) -> None:
    """Read a benchmark result."""
    for run in read_results(path).runs:
        assert all(
            0.0 < value < math.inf
            for value in (run.input_tokens, run.output_tokens, run.load, run.ttft_ms, run.tpot_ms)
        )


_INSTANCES = {"us-east-1/l4/spot": "g6.xlarge", "us-east-1/l4/on-demand": "g6.xlarge"}
_RATES = {"USD": 1.0, "EUR": 1.08}
_CLUSTER = Cluster(
    tuple(
        Pool("us-east-1", "l4", catalog.gpu("L4"), 1, 9, market, 1.0)
        for market in (Market.ON_DEMAND, Market.SPOT)
    ),
    (),
)


def read_supply(path: Path, seed: int, draw: random.Random) -> None:
    """Read a feed or a file of --supply. The number `seed` of the file decides between the two."""
    kind = draw.choice(seeds.FEED_READERS[seed])
    if kind == "supply":
        times = TraceTime(None, 3600.0, _INSTANCES)
        for event in load_supply([str(path)], _CLUSTER, 0.0, 240.0, times):
            assert 0.0 <= event.at_s < math.inf
    elif kind == "steps":
        load_supply([f"us-east-1/l4/spot={path}"], _CLUSTER, 0.0, 240.0)
    else:
        what = draw.choice(("prices", "prices", "availability"))
        own = _INSTANCES if draw.random() < 0.7 else None
        assert read_feed(what, path.read_bytes(), str(path), 5, own, _RATES) is not None


KINDS: dict[str, tuple[Sequence[str], Callable[[Path, int, random.Random], None]]] = {
    "traces": (seeds.TRACES, read_trace),
    "results": (seeds.RESULTS, read_result),
    "feeds": (seeds.FEEDS, read_supply),
    "starts": (engines.STARTS, engines.read_log),
    "metrics": (engines.METRICS, engines.read_metrics),
    "answers": (engines.ANSWERS, engines.read_answer),
    "configs": (engines.CONFIGS, engines.read_config),
}


def run(kind: str, count: int, seed: int, folder: Path) -> tuple[list[str], int]:
    """Read `count` faulty files of `kind`. Returns the failures and the number
    of accepted files.
    """
    texts, read = KINDS[kind]
    draw = random.Random(f"{kind} {seed}")
    path = folder / "file.dat"
    faults: list[str] = []
    good = 0
    for number in range(count):
        chosen = draw.randrange(len(texts))
        data = spoilt(texts[chosen], draw)
        path.write_bytes(data)
        try:
            read(path, chosen, draw)
            good += 1
        except UserError as error:
            said = str(error)
            if "\n" in said or str(path) not in said or len(said) > 2000:
                faults.append(f"{kind} {number}: not one line that names the file: {said[:300]!r}")
        except Exception:
            faults.append(f"{kind} {number}: {traceback.format_exc()}\n{data[:500]!r}")
    return faults, good


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every file gave a value or a one-line error."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (all)")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    failed = False
    with tempfile.TemporaryDirectory(prefix="malformed-") as folder:
        for kind in options.kinds or KINDS:
            faults, good = run(kind, options.count, options.seed, Path(folder))
            failed |= bool(faults)
            for fault in faults[:10]:
                print(fault)
            print(f"{kind}: {options.count} files, {good} read, {len(faults)} faults", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
