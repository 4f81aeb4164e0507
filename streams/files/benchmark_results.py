"""Read results of benchmark tools: `vllm bench serve` and `sweep`, SGLang, GuideLLM and aiperf.

Recognises their JSON, CSV and printed forms and extracts the values of a measured point.
`benchmark_reports` reads the reports of llm-d, inference-perf and InferenceX. Unsteady runs are
skipped, with the reason: all requests sent at once, a rising rate, failures, a served rate below
the requested rate, or a run too short for its load.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.domain.validation import InvalidValue
from streams.files.benchmark_reports import as_report, yaml_report
from streams.files.benchmark_steadiness import Steadiness
from streams.files.benchmark_tables import is_printed, printed_results
from streams.files.benchmark_values import (
    Result,
    day_in,
    day_of,
    find,
    finite_value,
    number,
    optional,
    optional_duration,
    result_of,
)
from streams.files.csv_rows import cause_of, text_of
from streams.files.guidellm_csv import as_benchmarks, cells_of, is_guidellm_csv
from streams.files.user_errors import UserError, first_line


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
    for position, raw in enumerate(_documents(path, text), start=1):
        where = f"{path}: run {position}"
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
    --append-result`), a CSV, a printed table or a report in YAML. A returned string is the reason
    why a result is unusable.
    """
    if is_printed(text):
        return printed_results(text)
    if text.lstrip()[:1] not in ("{", "["):
        report = yaml_report(path, text)
        return _rows(path, text) if report is None else report
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
        f"{path}: not JSON, nor a CSV of GuideLLM or vllm bench sweep (mean_ttft_ms and others), "
        "nor the printed table of vllm bench serve, nor a report of llm-d in YAML"
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
    elif (reported := as_report(raw)) is not None:
        yield reported
    else:
        known = (
            "vllm bench serve --save-result, GuideLLM, aiperf, llm-d, inference-perf or InferenceX"
        )
        raise InvalidValue("result", ", ".join(list(raw)[:5]), f"a result of {known}")


def _with_first_tokens(*places: Any) -> Mapping[str, Any] | None:
    """The first mapping in `places` with metrics of aiperf."""
    return next((p for p in places if isinstance(p, Mapping) and "time_to_first_token" in p), None)


def _vllm(raw: Mapping[str, Any]) -> Result | str:
    """One result of `vllm bench serve --save-result`."""
    done = number(raw, "completed")
    if done < 1:
        return "no request was completed"
    inputs, outputs = (number(raw, f"total_{n}_tokens") / done for n in ("input", "output"))
    ttft, tpot = number(raw, "mean_ttft_ms"), number(raw, "mean_tpot_ms")
    rate, bound = _rate_of(raw), optional(raw, "max_concurrency")
    if not rate and not bound:
        return "all requests were sent at once (no --max-concurrency): no steady load"
    steady = Steadiness(
        completed=done,
        failed=max(optional(raw, "failed"), optional(raw, "num_prompts") - done),
        asked_req_per_s=rate,
        duration_s=optional_duration(raw, "duration"),
        took_s=(ttft + outputs * tpot) / 1e3,
        bound=bound,
        under_way=optional(raw, "request_throughput") * (ttft + outputs * tpot) / 1e3,
        ramp=str(raw.get("ramp_up_strategy") or ""),
    )
    day = day_in(str(raw.get("date", "")))
    return result_of(str(raw.get("model_id") or ""), day, inputs, outputs, steady.load(),
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
                return finite_value(f"metrics.{name}.mean", good["mean"])
        raise InvalidValue(f"metrics.{names[0]}", "missing", "a mean over successful requests")

    if mean("output_token_count") < 1.0:
        return "no request was completed"
    kind = str(find(one, ("strategy", "type_")) or find(one, ("strategy", "type")) or "")
    if "throughput" in kind:
        return "throughput mode: all requests were sent at once, no steady load"
    ttft, tpot = mean("time_to_first_token_ms"), mean("inter_token_latency_ms")
    model = find(one, ("backend_model",)) or find(one, ("model",)) or find(raw, ("model",))
    start = find(one, ("start_time",))
    return result_of(str(model or ""), day_of(start), mean("prompt_token_count"),
                     mean("output_token_count"), mean("request_concurrency"), ttft, tpot,
                     _guidellm_steadiness(one, metrics))  # fmt: skip


def _guidellm_steadiness(one: Mapping[str, Any], metrics: Mapping[str, Any]) -> Steadiness:
    def mean(name: str) -> float:
        found = metrics.get(name)
        good = found.get("successful", found) if isinstance(found, Mapping) else None
        return optional(good, "mean") if isinstance(good, Mapping) else 0.0

    strategy = find(one, ("strategy",))
    strategy = strategy if isinstance(strategy, Mapping) else {}
    totals = metrics.get("request_totals") or {}
    kind = str(strategy.get("type_") or strategy.get("type") or "")
    ramped = optional(strategy, "rampup_duration") or optional(strategy, "startup_duration")
    return Steadiness(
        completed=optional(totals, "successful"),
        failed=optional(totals, "errored"),
        asked_req_per_s=optional(strategy, "rate") if kind in ("constant", "poisson") else 0.0,
        duration_s=optional_duration(one, "duration"),
        took_s=(
            mean("time_to_first_token_ms")
            + mean("output_token_count") * mean("inter_token_latency_ms")
        )
        / 1e3,
        bound=optional(strategy, "streams"),
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
        return finite_value(f"{name}.avg", found["avg"]) * factor

    ttft, tpot = average("time_to_first_token"), average("inter_token_latency")
    outputs = average("output_sequence_length")
    config = raw.get("input_config", {})
    bound = find(config, ("concurrency",))
    if not bound:
        average("request_throughput")  # Without a concurrency, the load follows from this.
    ramps = ("concurrency_ramp_duration", "request_rate_ramp_duration")
    ramp_s = max(optional({name: find(config, (name,))}, name) for name in ramps)
    steady = Steadiness(
        completed=_average(raw, metrics, "request_count"),
        failed=_average(raw, metrics, "error_request_count"),
        asked_req_per_s=optional({"rate": find(config, ("request_rate",))}, "rate"),
        duration_s=_average(raw, metrics, "benchmark_duration"),
        took_s=(ttft + outputs * tpot) / 1e3,
        bound=finite_value("input_config.concurrency", bound) if bound else 0.0,
        under_way=_average(raw, metrics, "request_throughput") * (ttft + outputs * tpot) / 1e3,
        ramp=f"{ramp_s:g} s of ramp" if ramp_s else "",
    )
    names = find(config, ("model_names",))
    model = names[0] if isinstance(names, list) and names else names
    return result_of(str(model or ""), day_of(raw.get("start_time")),
                     average("input_sequence_length"), outputs, steady.load(), ttft, tpot,
                     steady)  # fmt: skip


def _average(raw: Mapping[str, Any], metrics: Mapping[str, Any], name: str) -> float:
    """The `avg` of a metric of aiperf; 0 if the file has none."""
    found = metrics.get(name) or raw.get(name)
    return optional(found, "avg") if isinstance(found, Mapping) else 0.0


def _rate_of(raw: Mapping[str, Any]) -> float:
    """Requested rate in requests/s.

    0 if no rate was requested; then only the concurrency limit delayed requests.
    """
    rate = raw.get("request_rate")
    if rate in (None, "", "inf", math.inf):
        return 0.0
    return number(raw, "request_rate")
