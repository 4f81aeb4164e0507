"""ServeGen's published windows as a trace: rates per 10 minutes, and request lengths.

Requests are drawn from the windows. There are two formats, distinguished by their header. One has
the rate of a whole workload per window: arrivals are Poisson. The other has rate, burstiness and
distribution of each client per window: arrivals are renewal processes with Gamma or Weibull gaps,
as in ServeGen. Lengths are drawn from the histogram in the same folder, and scaled to the means of
their window if the file has means. A window without a rate is a gap in the record, not silence: the
rate of the window before applies. Source: ServeGen (alibaba/ServeGen).
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from streams.files.csv_rows import Row, finite_cell, read_rows
from streams.files.tables import is_parquet, read_lines
from streams.files.user_errors import NoRequests, UserError
from streams.tools.replay.trace_formats import KNOWN
from streams.tools.replay.traces import Trace

_RATES = "window_start_s,rate_rps"
_CLIENTS = "client,window_start_s,rate_rps,cv,pattern,arg1,arg2"
_NAME = re.compile(r"(.+)_(rate|clients)_10min\.csv(\.gz)?\Z")
_NAMES_CLIENTS = "NAME_clients_10min.csv.gz"
_CLIENT_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?\Z")
_MOST_CLIENTS = 100_000
_MOST = 5_000_000
_LONGEST = 10_000_000

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def is_servegen(path: Path) -> bool:
    """Whether `path` begins like one of the two forms."""
    if is_parquet(path):
        return False
    first = next((line for line in read_lines(path, KNOWN) if line.strip()), "").replace(" ", "")
    return first == _CLIENTS or first.startswith(_RATES)


def client_selection(text: str) -> tuple[Path, frozenset[str]]:
    """The file and the clients of FILE#0,3-5; no clients if `text` is a file's name.

    UserError for something else than numbers and ranges after the last "#".
    """
    file, mark, listed = text.rpartition("#")
    if not mark or Path(text).exists():
        return Path(text), frozenset()
    found: set[str] = set()
    for part in listed.split(","):
        match = _CLIENT_RANGE.match(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < _MOST_CLIENTS:
            raise UserError(f"{text}: {part!r} is not allowed; clients such as FILE#0,3-5")
        found.update(str(client) for client in range(first, last + 1))
    return Path(file), frozenset(found)


def load_servegen(
    path: Path, from_s: float, to_s: float, rate_scale: float, random: np.random.Generator
) -> Trace:
    """Requests of [from_s, to_s) at rate_scale times the recorded rates. Times count from from_s.

    UserError: an unusable file, or more than 5 million requests.
    """
    return load_representatives(path, from_s, to_s, rate_scale, random, most=0)[0]


def load_representatives(
    path: Path,
    from_s: float,
    to_s: float,
    rate_scale: float,
    random: np.random.Generator,
    most: int,
    clients: frozenset[str] = frozenset(),
) -> tuple[Trace, float]:
    """As `load_servegen`, but one request may represent several. Also returns how many. clients:
    those whose requests are taken; empty = all.

    Each request stands for one, unless there would be more than `most` requests (0 = no limit).
    Requests that stand for several are evenly spaced at the recorded rate. Any few hundred
    consecutive ones follow the distribution of lengths. Random lengths would have too large an
    effect, because each length counts for several requests. The caller adds the randomness.
    """
    changed = path.stat()
    rates = _record(path, changed.st_mtime_ns, changed.st_size)
    if clients and "" in rates:
        raise UserError(f"{path}: names no clients; {_NAMES_CLIENTS} does")
    width_s = _width(rates)
    if unknown := sorted(clients - set(rates)):
        raise UserError(f"{path}: has no client {', '.join(unknown[:5])}; it has {len(rates)}")
    rates = {client: found for client, found in rates.items() if client in (clients or rates)}
    last_s = max(at for found in rates.values() for at in found) + width_s
    to_s = min(to_s, last_s)
    if from_s >= to_s:
        raise NoRequests(f"{path}: nothing from {from_s:g} s on; the record ends at {last_s:g} s")
    expected = 0.0
    whole: dict[str, list[tuple[float, float, _Window]]] = {}
    for client, found in rates.items():
        spans = _filled(found, width_s, last_s, fill=client == "")
        cut = [(max(a, from_s), min(b, to_s), w) for a, b, w in spans if a < to_s and b > from_s]
        expected += sum((b - a) * w.req_per_s * rate_scale for a, b, w in cut)
        whole[client] = cut
    weight = max(1.0, expected / most) if most else 1.0
    if expected > weight * _MOST:
        raise UserError(
            f"{path}: about {expected:.3g} requests; allowed: {_MOST:.0e}. "
            "Take a slice (--from, --to) or lower --rate-scale"
        )
    spans = [span for client in sorted(whole) for span in whole[client]]
    if weight > 1.0:
        at_s = _even(spans, rate_scale / weight)
    else:
        parts = [_arrivals(*span, rate_scale, random) for span in spans]
        at_s = np.sort(np.concatenate(parts)) if parts else np.zeros(0)
    if not len(at_s):
        raise NoRequests(f"{path}: no requests from {from_s:g} s to {to_s:g} s")
    inputs, outputs = _lengths(path, at_s, random, even=weight > 1.0)
    trace = Trace(
        path,
        "servegen",
        array("d", (1000.0 * (at_s - from_s)).tolist()),
        array("q", inputs.tolist()),
        array("q", outputs.tolist()),
    )
    return trace, weight


@lru_cache(maxsize=4)
def _record(path: Path, mtime_ns: int, size: int) -> Mapping[str, Mapping[float, _Window]]:
    """The windows of each client, or of "" if the record names no clients. mtime_ns, size: those
    of the file, so that a changed file is read again."""
    del mtime_ns, size
    rows = read_rows(path)
    return _by_client(path, rows) if "client" in rows[0] else {"": _windows(path, rows, 0)}


def window_rates(path: Path) -> dict[float, float]:
    """Requests/s of each window with a rate, by its start in s. UserError: an unusable file."""
    changed = path.stat()
    by = _record(path, changed.st_mtime_ns, changed.st_size)
    found: dict[float, float] = {}
    for windows in by.values():
        for at_s, window in windows.items():
            found[at_s] = found.get(at_s, 0.0) + window.req_per_s
    return found


@dataclass(frozen=True, slots=True)
class _Window:
    req_per_s: float
    cv: float = 1.0
    pattern: str = ""


def _by_client(path: Path, rows: Sequence[Row]) -> dict[str, dict[float, _Window]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["client"], []).append(row)
    return {client: _windows(path, mine, 1) for client, mine in found.items()}


def _windows(path: Path, rows: Sequence[Row], clients: int) -> dict[float, _Window]:
    found: dict[float, _Window] = {}
    for row in rows:
        if not row["rate_rps"].strip():
            continue  # This is a gap in the record.
        at_s = _number(path, row, "window_start_s", 366 * 86_400.0)
        rate = _number(path, row, "rate_rps", 1e6)
        if not clients:
            found[at_s] = _Window(rate)
            continue
        pattern = row["pattern"]
        if pattern not in ("Gamma", "Weibull"):
            raise UserError(f"{path}: pattern: {pattern!r} is not allowed; Gamma or Weibull")
        found[at_s] = _Window(rate, max(0.01, _number(path, row, "cv", 1e3)), pattern)
    if not found:
        raise UserError(f"{path}: no window has a rate")
    return found


def _number(path: Path, row: Row, column: str, most: float) -> float:
    value = finite_cell(row.get(column), 0.0, most)
    if value is None:
        raise UserError(f"{path}: {column}: {row.get(column)!r} is not allowed; 0 to {most:g}")
    return value


def _width(rates: Mapping[str, Mapping[float, _Window]]) -> float:
    """The length of a window in seconds: the least distance between two starts."""
    starts = sorted({at for found in rates.values() for at in found})
    gaps = [b - a for a, b in pairwise(starts)]
    if not gaps:
        return 600.0
    return min(gaps)


def _filled(
    found: Mapping[float, _Window], width_s: float, last_s: float, fill: bool
) -> list[tuple[float, float, _Window]]:
    """(begin, end, window) of each window in `found`. If `fill` is true, a window lasts until the
    next one begins; otherwise it lasts `width_s`."""
    starts = sorted(found)
    ends = [*starts[1:], last_s] if fill else [at + width_s for at in starts]
    return [(a, b, found[a]) for a, b in zip(starts, ends, strict=True)]


def _even(spans: Sequence[tuple[float, float, _Window]], scale: float) -> Floats:
    """Evenly spaced times at `scale` times the total rate of all spans."""
    edges = np.unique(np.array([at for begin, end, _ in spans for at in (begin, end)]))
    rate = np.zeros(len(edges))
    for begin, end, window in spans:
        rate[np.searchsorted(edges, begin)] += scale * window.req_per_s
        rate[np.searchsorted(edges, end)] -= scale * window.req_per_s
    upto = np.concatenate(([0.0], np.cumsum(np.cumsum(rate)[:-1] * np.diff(edges))))
    found: Floats = np.interp(np.arange(int(upto[-1])) + 0.5, upto, edges)
    return found


def _arrivals(
    begin: float, end: float, window: _Window, scale: float, random: np.random.Generator
) -> Floats:
    """Random arrival times in [begin, end).

    To raise the rate of a renewal process, independent copies are superposed and then thinned,
    which makes it less bursty.
    """
    rate, span = window.req_per_s, end - begin
    if rate <= 0.0:
        return np.zeros(0)
    if not window.pattern:
        return begin + span * random.random(random.poisson(rate * scale * span))
    copies = max(1, math.ceil(scale))
    found = begin + np.concatenate([_renewal(rate, span, window, random) for _ in range(copies)])
    return found[random.random(len(found)) < scale / copies]


def _renewal(rate: float, span: float, window: _Window, random: np.random.Generator) -> Floats:
    """A renewal process that began before the span, so that the start of the span has no burst."""
    run_in = min(20.0 * window.cv * window.cv / rate, 10.0 * span)
    need = int(1.2 * rate * (span + run_in)) + 64
    at = 0.0
    found: list[Floats] = []
    while at < span + run_in:
        gaps = _gaps(need, rate, window, random)
        times = at + np.cumsum(gaps)
        found.append(times)
        at = float(times[-1])
    times = np.concatenate(found) - run_in
    return times[(times >= 0.0) & (times < span)]


def _gaps(count: int, rate: float, window: _Window, random: np.random.Generator) -> Floats:
    cv = window.cv
    if window.pattern == "Gamma":
        shape = 1.0 / (cv * cv)
        return random.gamma(shape, 1.0 / (rate * shape), count)
    shape = _weibull_shape(cv)
    return random.weibull(shape, count) / (rate * math.gamma(1.0 + 1.0 / shape))


def _weibull_shape(cv: float) -> float:
    """The shape of the Weibull distribution with coefficient of variation `cv`, by bisection."""
    low, high = 0.1, 50.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        one = math.lgamma(1.0 + 1.0 / middle)
        two = math.lgamma(1.0 + 2.0 / middle)
        if math.sqrt(max(0.0, math.exp(two - 2.0 * one) - 1.0)) > cv:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def _lengths(
    path: Path, at_s: Floats, random: np.random.Generator, even: bool
) -> tuple[Ints, Ints]:
    """Input and output tokens of each arrival. even: use `_spread_points` instead of random
    points."""
    match = _NAME.match(path.name)
    beside = path.with_name(f"{match[1]}_token_hist.json.gz") if match else path
    if not match or not beside.exists():
        want = f"{match[1]}_token_hist.json.gz" if match else "NAME_token_hist.json.gz"
        raise UserError(f"{path}: its lengths are missing; expected {want} in the same folder")
    try:
        laws = orjson.loads("\n".join(read_lines(beside, "a histogram of lengths")))
        read = [key for key in ("input_tokens", "text_tokens", "image_tokens") if key in laws]
        asked = [laws[key] for key in (*read, "output_tokens")]
        shape = len(asked), len(at_s)
        points = _spread_points(*shape, random) if even else random.random(shape)
        *drawn, outputs = (_drawn(law, row) for law, row in zip(asked, points, strict=True))
        inputs = np.array(drawn).sum(axis=0, keepdims=True)[0]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{beside}: not a histogram of input_tokens, output_tokens ({error})"
        ) from None
    means = path.with_name(f"{match[1]}_tokens_by_window.csv.gz")
    if means.exists():
        rows = read_rows(means)
        inputs = _scaled(means, inputs, rows, [f"{key}_mean" for key in read], at_s)
        outputs = _scaled(means, outputs, rows, ["output_tokens_mean"], at_s)
    return _whole(inputs), _whole(outputs)


def _drawn(law: Mapping[str, float], points: Floats) -> Floats:
    """The quantiles of `law` at `points`, which are in [0, 1)."""
    values = np.array([float(key) for key in law])
    weights = np.array(list(law.values()), dtype=float)
    with np.errstate(over="ignore"):
        whole = weights.sum()
    if not (np.isfinite(values).all() and (weights >= 0.0).all() and 0.0 < whole < math.inf):
        raise ValueError("lengths must be finite, weights finite, at least 0 and not all 0")
    upto = (weights / whole).cumsum()
    found: Floats = values[(upto / upto[-1]).searchsorted(points, side="right")]
    return found


def _spread_points(sides: int, count: int, random: np.random.Generator) -> Floats:
    """Points of [0, 1) in `sides` dimensions that fill the cube evenly, as an array (sides, count).
    Any consecutive part of them fills it evenly too.

    They are Roberts' R sequence, whose steps are powers of the root of x^(sides + 1) = x + 1. The
    seed sets the first point.
    """
    root = 2.0
    for _ in range(60):
        root = (1.0 + root) ** (1.0 / (sides + 1))
    steps = root ** -np.arange(1.0, sides + 1.0)[:, None]
    found: Floats = (random.random((sides, 1)) + steps * np.arange(count)) % 1.0
    return found


def _scaled(
    path: Path, values: Floats, rows: Sequence[Row], columns: Sequence[str], at_s: Floats
) -> Floats:
    """`values`, scaled to the recorded means of the windows.

    Each value is divided by the mean of all values and multiplied by the recorded mean of its
    arrival's window. columns: the recorded mean is their sum.
    """
    starts = np.array([_number(path, row, "window_start_s", 1e9) for row in rows])
    means = np.array([sum(_number(path, row, c, _LONGEST) for c in columns) for row in rows])
    index = np.clip(np.searchsorted(starts, at_s, side="right") - 1, 0, len(starts) - 1)
    return values * (means[index] / max(1e-9, float(values.mean())))


def _whole(values: Floats) -> Ints:
    return np.clip(np.rint(values), 1, _LONGEST).astype(np.int64)
