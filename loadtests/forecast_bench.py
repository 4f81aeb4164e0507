"""Compare the errors of forecasts: `python -m loadtests.forecast_bench [--traces DIR]`.

Every strategy of `autoscaler.estimate.forecast` is compared with last value. At each moment of a
series a strategy gets the earlier bins, and its forecast is compared with the later ones. `auto` is
the controller's own choice, which it makes every 30 bins from past errors. Without a choice the
controller uses the present rate, so `auto` then has the errors of last value.

Generated series are Poisson counts per minute around a known rate. --traces names the folder of the
public traces. Their bins are minutes, or 10 s for a trace of less than half an hour, or ServeGen's
windows of 10 minutes. The output has the mean absolute error (MAE) and the pinball loss at 0.9 in
requests/s, and both relative to last value.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from autoscaler.estimate.forecast.forecaster import Forecaster, NoForecast
from autoscaler.estimate.forecast.forecasters import forecasters
from autoscaler.estimate.forecast.history import Rates
from autoscaler.estimate.forecast.selection import AUTO, best_score, score_forecasters
from streams.files.user_errors import UserError
from streams.tools.replay.servegen import is_servegen, window_rates
from streams.tools.replay.traces import load_trace

QUANTILE = 0.9
HORIZONS_S = (60, 120, 300, 600)
_CHOOSE_EVERY = 30
_MOST_ORIGINS = 600
FILES = (
    "azure2023_conv.csv.gz",
    "aibrix_8min_up_and_down.csv.gz",
    "mooncake_synthetic.jsonl.gz",
    "servegen/m-large_rate_10min.csv.gz",
    "servegen/mm-image_rate_10min.csv.gz",
)


@dataclass(frozen=True, slots=True)
class Series:
    """A series of rates: requests/s of bins of `bin_s` seconds, NaN without a recording."""

    name: str
    bin_s: int
    rates: Rates


@dataclass(frozen=True, slots=True)
class Row:
    """Errors of one method on one series at one horizon. origins: number of forecasts."""

    series: str
    horizon_s: int
    method: str
    origins: int
    mae: float
    pinball: float
    mae_of_last: float
    pinball_of_last: float


def generated(seed: int) -> list[Series]:
    """Series with a known shape: three days of minutes, or half a day if the shape repeats each
    hour."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, Callable[[int], float]]] = {
        "steady, 5 req/s": (720, lambda _: 5.0),
        "day, 4:1 around 10": (
            4320,
            lambda m: 10.0 * (1.0 + 0.6 * math.sin(2.0 * math.pi * m / 1440.0)),
        ),
        "bursts of 6 min each hour, 4 to 16": (720, lambda m: 16.0 if m % 60 < 6 else 4.0),
        "office hours, 2 to 20 in 5 min": (
            4320,
            lambda m: 2.0 + 18.0 * min(1.0, max(0.0, min(m % 1440 - 540, 1020 - m % 1440) / 5.0)),
        ),
        "ramps of 30 min, 2 to 20": (720, lambda m: 2.0 + 0.6 * min(m % 90, 30)),
    }
    return [
        Series(name, 60, np.array([random.poisson(60.0 * rate(m)) / 60.0 for m in range(minutes)]))
        for name, (minutes, rate) in shapes.items()
    ]


def recorded(path: Path) -> Series:
    """Return the series of a trace file; raises UserError if the file cannot be read."""
    name = path.name.split(".")[0]
    if is_servegen(path):
        rates = window_rates(path)
        starts = range(0, round(max(rates)) + 1, 600)
        return Series(name, 600, np.array([rates.get(at, math.nan) for at in starts]))
    trace = load_trace(path)
    bin_s = 60 if trace.duration_s >= 1800.0 else 10
    at = (np.array(trace.arrivals_ms) // (1000 * bin_s)).astype(np.int64)
    return Series(name, bin_s, np.bincount(at)[:-1] / bin_s)


def judged(series: Series, horizon_s: int) -> list[Row]:
    """Score every method, and `auto`, on the newer two thirds of `series`."""
    steps = horizon_s // series.bin_s
    known = forecasters(series.bin_s)
    rates = series.rates
    first, last = len(rates) // 3, len(rates) - 1 - steps
    origins = range(first, last + 1, max(1, (last - first) // _MOST_ORIGINS))
    said: dict[str, list[float]] = {one.name: [] for one in known}
    said[AUTO] = []
    truths = []
    chosen: Forecaster = known[0]
    chosen_at = -_CHOOSE_EVERY
    for origin in origins:
        if origin - chosen_at >= _CHOOSE_EVERY:
            found = best_score(score_forecasters(rates[: origin + 1], steps, known), AUTO)
            chosen, chosen_at = found.forecaster if found else known[0], origin
        if math.isnan(rates[origin + steps]):
            continue
        answers = {one.name: _answer(one, rates[: origin + 1], steps) for one in known}
        if math.isnan(answers[known[0].name]):
            continue
        truths.append(rates[origin + steps])
        for name, answer in answers.items():
            said[name].append(answer)
        said[AUTO].append(answers[chosen.name])
    truth = np.array(truths)
    of_last = _losses(np.array(said[known[0].name]), truth)
    rows = []
    for name, answers_ in said.items():
        predicted = np.array(answers_)
        if len(predicted) and not np.isnan(predicted).any():
            mae, pinball = _losses(predicted, truth)
            rows.append(Row(series.name, horizon_s, name, len(truth), mae, pinball, *of_last))
    return rows


def _answer(strategy: Forecaster, rates: Rates, steps: int) -> float:
    found = strategy.predict(rates[-strategy.lookback :], steps)
    return math.nan if isinstance(found, NoForecast) else found


def _losses(predicted: Rates, truth: Rates) -> tuple[float, float]:
    over = truth - predicted
    pinball = np.maximum(QUANTILE * over, (QUANTILE - 1.0) * over)
    return float(np.abs(over).mean()), float(pinball.mean())


def table(rows: Sequence[Row]) -> str:
    """Format the rows as text."""
    lines = []
    before = ("", 0)
    for row in rows:
        if (row.series, row.horizon_s) != before:
            before = row.series, row.horizon_s
            lines.append(
                f"\n{row.series}, {row.horizon_s / 60:g} min ahead ({row.origins} moments)\n"
                f"  {'method':18}{'MAE':>9}{'of last':>9}{'pinball':>10}{'of last':>9}"
            )
        lines.append(
            f"  {row.method:18}{row.mae:9.3f}{_share(row.mae, row.mae_of_last):>9}"
            f"{row.pinball:10.3f}{_share(row.pinball, row.pinball_of_last):>9}"
        )
    return "\n".join(lines).lstrip("\n")


def _share(value: float, of: float) -> str:
    return f"{value / of:.0%}" if of > 0.0 else "-"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 2 a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.forecast_bench", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--traces", type=Path, help="the folder of the public traces")
    parser.add_argument("--trace", type=Path, nargs="+", default=[], help="further trace files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(argv)
    all_ = generated(given.seed)
    paths = [given.traces / name for name in FILES] if given.traces else []
    try:
        all_ += [recorded(path) for path in (*paths, *given.trace)]
    except (UserError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    rows: list[Row] = []
    for series in all_:
        for horizon_s in HORIZONS_S:
            if horizon_s % series.bin_s == 0 and 3 * horizon_s // series.bin_s < len(series.rates):
                rows += judged(series, horizon_s)
    print(table(rows))
    if given.json:
        given.json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
