"""Read reports of llm-d's benchmark (0.1 and 0.2), inference-perf and InferenceX.

Each report becomes one run, or the reason why it is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import yaml

from autoscaler.domain.validation import InvalidValue
from streams.files.benchmark_steadiness import Steadiness
from streams.files.benchmark_values import (
    Result,
    day_in,
    find,
    finite_value,
    number,
    optional,
    optional_duration,
    result_of,
)
from streams.files.user_errors import UserError, first_line
from topics.plainyaml import load

_YAML = re.compile(r"^(metrics|results):", re.MULTILINE)
_MS = {"s": 1e3, "s/token": 1e3, "ms": 1.0, "ms/token": 1.0, "us": 1e-3}
_MOST_GPUS = 1024
_OF_HOST = ("accelerator", "type")


def yaml_report(path: Path, text: str) -> list[Any] | None:
    """The documents of a YAML report; None if `text` is none. UserError: it is broken."""
    if not _YAML.search(text) or "latency" not in text:
        return None
    try:
        return [
            load(part) for part in re.split(r"^---\s*$", text, flags=re.MULTILINE) if part.strip()
        ]
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML ({first_line(error)})") from None


def as_report(raw: Mapping[str, Any]) -> Result | str | None:
    """The run of a report; None if `raw` is of another kind. InvalidValue: a value is missing or
    not allowed."""
    if isinstance(raw.get("load_summary"), Mapping) and isinstance(raw.get("successes"), Mapping):
        return _inference_perf(raw, raw["load_summary"], raw["successes"])
    if "conc" in raw and "mean_ttft" in raw:
        return _inferencex(raw)
    aggregate = find(raw.get("results"), ("request_performance", "aggregate"))
    of_old = raw.get("metrics")
    for report in (aggregate, of_old):
        if isinstance(report, Mapping) and isinstance(report.get("latency"), Mapping):
            return _llmd(raw, report, report["latency"])
    return None


def _inference_perf(
    raw: Mapping[str, Any], sent: Mapping[str, Any], good: Mapping[str, Any]
) -> Result | str:
    """A stage or the summary of inference-perf. Times are seconds."""
    latency = _mapping(good, "latency")
    if not isinstance(latency.get("time_to_first_token"), Mapping):
        return "TTFT is missing: the answers were not streamed"
    per_token = (
        "time_per_output_token" if latency.get("time_per_output_token") else ("inter_token_latency")
    )
    ttft, tpot = (1e3 * _mean(latency, name) for name in ("time_to_first_token", per_token))
    inputs, outputs = _mean(good, "prompt_len"), _mean(good, "output_len")
    done = number(good, "count")
    rate = number(_mapping(good, "throughput"), "requests_per_sec")
    return _run(
        raw, ttft, tpot, inputs, outputs,
        completed=done,
        failed=optional(raw.get("failures"), "count"),
        asked=optional(sent, "requested_rate"),
        bound=optional(sent, "concurrency"),
        duration_s=done / rate if rate else 0.0,
        req_per_s=rate,
    )  # fmt: skip


def _llmd(
    raw: Mapping[str, Any], report: Mapping[str, Any], latency: Mapping[str, Any]
) -> Result | str:
    """llm-d's benchmark report. Each statistic names its unit."""
    if not isinstance(latency.get("time_to_first_token"), Mapping):
        return "TTFT is missing: the answers were not streamed"
    requests = _mapping(report, "requests")
    per_token = (
        "time_per_output_token" if latency.get("time_per_output_token") else ("inter_token_latency")
    )
    ttft, tpot = (_in_ms(latency, name) for name in ("time_to_first_token", per_token))
    inputs, outputs = _mean(requests, "input_length"), _mean(requests, "output_length")
    rates = report.get("throughput")
    stated = rates.get("request_rate") if isinstance(rates, Mapping) else None
    rate = optional(stated, "mean") or optional(rates, "requests_per_sec")
    failed = optional(requests, "failures") + optional(requests, "incomplete")
    done = number(requests, "total") - failed
    if done < 1:
        return "no request was completed"
    duration_s = optional_duration(report.get("time"), "duration")
    load = find(raw.get("scenario"), ("load", "standardized"))
    run = _run(
        raw, ttft, tpot, inputs, outputs,
        completed=done,
        failed=failed,
        asked=optional(load, "rate_qps"),
        bound=_limit(load),
        duration_s=duration_s or (done / rate if rate else 0.0),
        req_per_s=rate,
    )  # fmt: skip
    return run if isinstance(run, str) else _on_hardware(run, raw.get("scenario"))


def _on_hardware(run: Result, scenario: Any) -> Result | str:
    """`run` with the model and GPUs that llm-d states; a reason if it had several engines."""
    engines = list(_engines(scenario))
    if any(role in ("prefill", "decode") for role, _, _ in engines):
        return "prefill and decode ran in separate engines"
    if len(engines) > 1 or any(replicas > 1.0 for _, replicas, _ in engines):
        return "several engines served the requests; expected a run of one engine"
    for _, _, one in engines:
        accelerator = one.get("accelerator")
        split = find(accelerator, ("parallelism",))
        wide = optional(split, "tp") * max(1.0, optional(split, "pp") * optional(split, "dp"))
        named = find(one.get("model"), ("name",)) or run.model
        gpu = find(accelerator, ("model",)) or ""
        return replace(run, model=str(named), gpu=str(gpu), gpus=_gpus(wide))
    return run


def _engines(scenario: Any) -> Iterator[tuple[str, float, Mapping[str, Any]]]:
    """Role, replicas, and values of each engine in a scenario of llm-d, in version 0.1 (`host`) or
    0.2 (`stack`)."""
    stack = find(scenario, ("stack",))
    for part in stack if isinstance(stack, list) else []:
        one = find(part, ("standardized",))
        if isinstance(one, Mapping) and isinstance(one.get("accelerator"), Mapping):
            yield str(one.get("role") or ""), optional(one, "replicas"), one
    host = find(scenario, ("host",))
    chips, roles = (host.get(n) if isinstance(host, Mapping) else None for n in _OF_HOST)
    chips, roles = (one if isinstance(one, list) else [] for one in (chips, roles))
    for chip, role in zip_longest(chips, roles):
        if isinstance(chip, Mapping):
            yield str(role or ""), 1.0, {"accelerator": chip}


def _inferencex(raw: Mapping[str, Any]) -> Result | str:
    """One point of InferenceX (before: InferenceMAX). Times are seconds."""
    if raw.get("disagg") in (True, "true", "True") or "prefill_tp" in raw:
        return "prefill and decode ran in separate engines"
    speculative = raw.get("mtp") or raw.get("spec_decoding")
    if speculative not in (None, "", "off", "none", "false", False):
        return f"speculative decoding ({str(speculative)[:20]}): not the time of the model alone"
    if raw.get("dp_attention") in (True, "true", "True"):
        return "data-parallel attention: not the time of one tensor-parallel engine"
    ttft, tpot = (1e3 * number(raw, name) for name in ("mean_ttft", "mean_tpot"))
    inputs, outputs = number(raw, "isl"), number(raw, "osl")
    steady = Steadiness(completed=0.0, bound=number(raw, "conc"))
    run = result_of(
        str(raw.get("model") or ""), day_in(str(raw.get("date") or "")), inputs, outputs,
        steady.load(), ttft, tpot, steady,
    )  # fmt: skip
    if isinstance(run, str):
        return run
    hardware = str(raw.get("hw") or "").split("-")[0]
    return replace(run, gpu=hardware, gpus=_gpus(optional(raw, "tp")))


def _run(
    raw: Mapping[str, Any], ttft: float, tpot: float, inputs: float, outputs: float, *,
    completed: float, failed: float, asked: float, bound: float, duration_s: float,
    req_per_s: float,
) -> Result | str:  # fmt: skip
    took_s = (ttft + outputs * tpot) / 1e3
    steady = Steadiness(
        completed=completed,
        failed=failed,
        asked_req_per_s=asked,
        duration_s=duration_s,
        took_s=took_s,
        bound=bound,
        under_way=req_per_s * took_s,
    )
    model = find(raw.get("scenario"), ("model", "name")) or raw.get("model") or ""
    start = find(raw.get("run"), ("time", "start")) or find(raw.get("metrics"), ("time", "start"))
    return result_of(
        model if isinstance(model, str) else "", day_in(str(start or "")), inputs, outputs,
        steady.load(), ttft, tpot, steady,
    )  # fmt: skip


def _limit(load: Any) -> float:
    value = load.get("concurrency") if isinstance(load, Mapping) else None
    return 0.0 if value in (None, float("inf"), "inf") else finite_value("concurrency", value)


def _gpus(value: float) -> int:
    return int(value) if 1.0 <= value <= _MOST_GPUS else 0


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if not isinstance(value, Mapping):
        raise InvalidValue(name, "missing" if value is None else type(value).__name__, "an object")
    return value


def _mean(raw: Mapping[str, Any], name: str) -> float:
    return finite_value(f"{name}.mean", _mapping(raw, name).get("mean"))


def _in_ms(raw: Mapping[str, Any], name: str) -> float:
    one = _mapping(raw, name)
    units = str(one.get("units") or "s")
    if units not in _MS:
        raise InvalidValue(f"{name}.units", units[:40], " or ".join(_MS))
    return _MS[units] * finite_value(f"{name}.mean", one.get("mean"))
