"""Read results of benchmark tools: `vllm bench serve` and `sweep`, SGLang, GuideLLM and aiperf.

Recognises their JSON and CSV forms and extracts the values of a measured point. Unsteady runs are
skipped, with the reason: all requests sent at once, a rising rate, failures, or a served rate below
the requested rate.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.domain.validation import InvalidValue, finite
from streams.files.benchmark_steadiness import Steadiness
from streams.files.csv_rows import cause_of, text_of
from streams.files.guidellm_csv import as_benchmarks, cells_of, is_guidellm_csv
from streams.files.user_errors import UserError, first_line

_SHOWN = 80
"""Maximum number of characters of a value that a message shows."""
_DAY = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark run: mean lengths, concurrent requests, mean TTFT and TPOT in ms.

    model: name in the file; day: YYYY-MM-DD. Both are "" if the file does not give them.
    """

    model: str
    day: str
    input_tokens: float
    output_tokens: float
    load: float
    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Results:
    """Usable runs of a file, and for each skipped run the reason."""

    runs: tuple[Result, ...]
    skipped: tuple[str, ...]


def read_results(path: Path) -> Results:
    """The runs in `path`, a file or the folder of a `vllm bench sweep`. UserError: the file is
    invalid."""
    if path.is_dir():
        return _of_folder(path)
    try:
        text = text_of(path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({cause_of(error)})") from None
    runs: list[Result] = []
    skipped: list[str] = []
    for number, raw in enumerate(_documents(path, text), start=1):
        where = f"{path}: run {number}"
        try:
            for one in [raw] if isinstance(raw, str) else _runs(raw):
                if isinstance(one, Result):
                    runs.append(one)
                else:
                    skipped.append(one)
        except InvalidValue as error:
            raise UserError(f"{where}: {error}") from None
    if not runs and not skipped:
        raise UserError(f"{path}: holds no run")
    return Results(tuple(runs), tuple(skipped))


def _of_folder(path: Path) -> Results:
    """The results in a sweep's folder.

    Each combination has a summary.json with its runs, or files run=N.json.
    """
    found = sorted(path.rglob("summary.json")) or sorted(path.rglob("run=*.json"))
    if not found:
        raise UserError(f"{path}: a folder without summary.json or run=N.json of vllm bench sweep")
    results = [read_results(one) for one in found]
    return Results(
        tuple(run for result in results for run in result.runs),
        tuple(why for result in results for why in result.skipped),
    )


def _documents(path: Path, text: str) -> list[Any]:
    """Results in a file.

    The file is a JSON document, a list of documents, one document per line (`vllm bench serve
    --append-result`), or a CSV. A returned string is the reason why a result is unusable.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return _rows(path, text)
    try:
        whole = json.loads(text)
        return whole if isinstance(whole, list) else [whole]
    except (ValueError, RecursionError) as error:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise UserError(f"{path}: not JSON ({first_line(error)})") from None


def _rows(path: Path, text: str) -> list[Any]:
    try:
        if is_guidellm_csv(text):
            return [
                one if isinstance(one, str) else {"benchmarks": [one]}
                for one in as_benchmarks(text)
            ]
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise UserError(f"{path}: not CSV ({error})") from None
    if rows and "mean_ttft_ms" in rows[0]:
        return list(cells_of(rows))
    if not text.strip():
        return []
    raise UserError(
        f"{path}: not JSON, nor a CSV of GuideLLM or vllm bench sweep (mean_ttft_ms and others)"
    )


def _runs(raw: Any) -> Iterator[Result | str]:
    if not isinstance(raw, Mapping):
        raise InvalidValue("result", type(raw).__name__, "an object")
    if isinstance(raw.get("benchmarks"), list):
        for one in raw["benchmarks"]:
            yield _guidellm(one, raw)
    elif "mean_ttft_ms" in raw and "total_input_tokens" in raw:
        yield _vllm(raw)
    elif (metrics := _with_first_tokens(raw.get("records"), raw)) is not None:
        yield _aiperf(metrics, raw)
    else:
        known = "vllm bench serve --save-result, GuideLLM or aiperf"
        raise InvalidValue("result", ", ".join(list(raw)[:5]), f"a result of {known}")


def _with_first_tokens(*places: Any) -> Mapping[str, Any] | None:
    """The first mapping in `places` with metrics of aiperf."""
    return next((p for p in places if isinstance(p, Mapping) and "time_to_first_token" in p), None)


def _vllm(raw: Mapping[str, Any]) -> Result | str:
    """One result of `vllm bench serve --save-result`."""
    done = _number(raw, "completed")
    if done < 1:
        return "no request was completed"
    inputs, outputs = (_number(raw, f"total_{n}_tokens") / done for n in ("input", "output"))
    ttft, tpot = _number(raw, "mean_ttft_ms"), _number(raw, "mean_tpot_ms")
    rate, bound = _rate_of(raw), _optional(raw, "max_concurrency")
    under_way = _optional(raw, "request_throughput") * (ttft + outputs * tpot) / 1e3
    if rate:
        load = _number(raw, "request_throughput") * (ttft + outputs * tpot) / 1e3
    elif bound:
        load = min(bound, done)
    else:
        return "all requests were sent at once (no --max-concurrency): no steady load"
    steady = Steadiness(
        completed=done,
        failed=max(_optional(raw, "failed"), _optional(raw, "num_prompts") - done),
        asked_req_per_s=rate,
        duration_s=_optional(raw, "duration"),
        took_s=(ttft + outputs * tpot) / 1e3,
        bound=0.0 if rate else bound,
        under_way=under_way,
        ramp=str(raw.get("ramp_up_strategy") or ""),
    )
    day = _day(str(raw.get("date", "")))
    return _result(str(raw.get("model_id") or ""), day, inputs, outputs, load,
                   ttft, tpot, steady)  # fmt: skip


def _guidellm(one: Any, raw: Mapping[str, Any]) -> Result | str:
    """One entry of GuideLLM's `benchmarks`."""
    if not isinstance(one, Mapping) or not isinstance(one.get("metrics"), Mapping):
        raise InvalidValue("benchmarks", type(one).__name__, "objects with metrics")
    metrics = one["metrics"]

    def mean(*names: str) -> float:
        for name in names:
            found = metrics.get(name)
            good = found.get("successful", found) if isinstance(found, Mapping) else None
            if isinstance(good, Mapping) and good.get("mean") is not None:
                return _finite(f"metrics.{name}.mean", good["mean"])
        raise InvalidValue(f"metrics.{names[0]}", "missing", "a mean over successful requests")

    if mean("output_token_count") < 1.0:
        return "no request was completed"
    kind = str(_find(one, ("strategy", "type_")) or _find(one, ("strategy", "type")) or "")
    if "throughput" in kind:
        return "throughput mode: all requests were sent at once, no steady load"
    ttft, tpot = mean("time_to_first_token_ms"), mean("inter_token_latency_ms")
    model = _find(one, ("backend_model",)) or _find(one, ("model",)) or _find(raw, ("model",))
    start = _find(one, ("start_time",))
    return _result(str(model or ""), _day_of(start), mean("prompt_token_count"),
                   mean("output_token_count"), mean("request_concurrency"), ttft, tpot,
                   _guidellm_steadiness(one, metrics))  # fmt: skip


def _guidellm_steadiness(one: Mapping[str, Any], metrics: Mapping[str, Any]) -> Steadiness:
    def mean(name: str) -> float:
        found = metrics.get(name)
        good = found.get("successful", found) if isinstance(found, Mapping) else None
        return _optional(good, "mean") if isinstance(good, Mapping) else 0.0

    strategy = _find(one, ("strategy",))
    strategy = strategy if isinstance(strategy, Mapping) else {}
    totals = metrics.get("request_totals") or {}
    kind = str(strategy.get("type_") or strategy.get("type") or "")
    ramped = _optional(strategy, "rampup_duration") or _optional(strategy, "startup_duration")
    return Steadiness(
        completed=_optional(totals, "successful"),
        failed=_optional(totals, "errored"),
        asked_req_per_s=_optional(strategy, "rate") if kind in ("constant", "poisson") else 0.0,
        duration_s=_optional(one, "duration"),
        took_s=(
            mean("time_to_first_token_ms")
            + mean("output_token_count") * mean("inter_token_latency_ms")
        )
        / 1e3,
        bound=_optional(strategy, "streams"),
        under_way=mean("request_concurrency"),
        ramp=kind if kind == "incremental" else f"{ramped:g} s of ramp" if ramped else "",
    )


def _aiperf(metrics: Mapping[str, Any], raw: Mapping[str, Any]) -> Result | str:
    """The result in aiperf's `profile_export_aiperf.json`."""

    def average(name: str) -> float:
        found = metrics.get(name)
        if not isinstance(found, Mapping) or found.get("avg") is None:
            raise InvalidValue(name, "missing", "a metric with its avg")
        unit = str(found.get("unit", "ms"))
        factor = {"s": 1e3, "sec": 1e3, "us": 1e-3, "ns": 1e-6}.get(unit, 1.0)
        return _finite(f"{name}.avg", found["avg"]) * factor

    ttft, tpot = average("time_to_first_token"), average("inter_token_latency")
    outputs = average("output_sequence_length")
    bound = _find(raw.get("input_config", {}), ("concurrency",))
    if bound:
        load = _finite("input_config.concurrency", bound)
    else:
        load = average("request_throughput") * (ttft + outputs * tpot) / 1e3
    config = raw.get("input_config", {})
    ramps = ("concurrency_ramp_duration", "request_rate_ramp_duration")
    ramp_s = max(_optional({name: _find(config, (name,))}, name) for name in ramps)
    steady = Steadiness(
        completed=_average(raw, metrics, "request_count"),
        failed=_average(raw, metrics, "error_request_count"),
        asked_req_per_s=_optional({"rate": _find(config, ("request_rate",))}, "rate"),
        duration_s=_average(raw, metrics, "benchmark_duration"),
        took_s=(ttft + outputs * tpot) / 1e3,
        bound=_finite("input_config.concurrency", bound) if bound else 0.0,
        under_way=_average(raw, metrics, "request_throughput") * (ttft + outputs * tpot) / 1e3,
        ramp=f"{ramp_s:g} s of ramp" if ramp_s else "",
    )
    names = _find(config, ("model_names",))
    model = names[0] if isinstance(names, list) and names else names
    return _result(str(model or ""), _day_of(raw.get("start_time")),
                   average("input_sequence_length"), outputs, load, ttft, tpot,
                   steady)  # fmt: skip


def _result(
    model: str, day: str, inputs: float, outputs: float, load: float, ttft: float,
    tpot: float, steady: Steadiness,
) -> Result | str:  # fmt: skip
    if outputs < 2.0:
        return "answers of one token: no time per token"
    if tpot <= 0.0 or ttft <= 0.0:
        return "TTFT or TPOT is 0: the answers were not streamed"
    if doubt := steady.doubt():
        return doubt
    finite("input tokens", inputs, 1.0, 1e7)
    finite("requests under way", load, 1e-3, 1e6)
    return Result(model, day, inputs, outputs, max(1.0, load), ttft, tpot)


def _average(raw: Mapping[str, Any], metrics: Mapping[str, Any], name: str) -> float:
    """The `avg` of a metric of aiperf; 0 if the file has none."""
    found = metrics.get(name) or raw.get(name)
    return _optional(found, "avg") if isinstance(found, Mapping) else 0.0


def _rate_of(raw: Mapping[str, Any]) -> float:
    """Requested rate in requests/s.

    0 if no rate was requested; then only the concurrency limit delayed requests.
    """
    rate = raw.get("request_rate")
    if rate in (None, "", "inf", math.inf):
        return 0.0
    return _number(raw, "request_rate")


def _optional(raw: Any, name: str) -> float:
    """An optional number; 0 if the result lacks it."""
    value = raw.get(name) if isinstance(raw, Mapping) else None
    return 0.0 if value is None or value == "" else _finite(name, value)


def _number(raw: Mapping[str, Any], name: str) -> float:
    return _finite(name, raw.get(name))


def _finite(name: str, value: Any) -> float:
    try:
        return finite(name, float(value), 0.0, 1e12)
    except (TypeError, ValueError, OverflowError):
        shown = value if len(repr(value)) <= _SHOWN else repr(value)[:_SHOWN]
        raise InvalidValue(name, shown, "a finite number from 0") from None


def _find(raw: Any, path: tuple[str, ...]) -> Any:
    """The first value at `path` anywhere in `raw`."""
    if isinstance(raw, Mapping):
        if path[0] in raw:
            inner = raw[path[0]]
            if len(path) == 1:
                return inner
            if isinstance(inner, Mapping) and path[1] in inner:
                return inner[path[1]]
        for value in raw.values():
            found = _find(value, path)
            if found is not None:
                return found
    return None


def _day(text: str) -> str:
    found = _DAY.search(text)
    return f"{found[1]}-{found[2]}-{found[3]}" if found else ""


def _day_of(start: Any) -> str:
    """The day (YYYY-MM-DD) of a timestamp in seconds or as text."""
    if isinstance(start, (int, float)) and 1e9 < start < 1e11:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(float(start), UTC).date().isoformat()
    return _day(str(start or ""))
