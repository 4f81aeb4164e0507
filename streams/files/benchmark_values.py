"""Values of a benchmark run: the `Result`, and checked numbers from files of benchmark tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from autoscaler.domain.validation import InvalidValue, finite
from streams.files.benchmark_steadiness import Steadiness

_SHOWN = 80
"""Maximum number of characters of a value that a message shows."""
_DAY = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})")


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark run: mean lengths, concurrent requests, mean TTFT and TPOT in ms.

    model: name in the file; day: YYYY-MM-DD; gpu: name of the GPU; gpus: GPUs of the engine. They
    are "" or 0 if the file does not give them.
    """

    model: str
    day: str
    input_tokens: float
    output_tokens: float
    load: float
    ttft_ms: float
    tpot_ms: float
    gpu: str = ""
    gpus: int = 0


def result_of(
    model: str, day: str, inputs: float, outputs: float, load: float, ttft: float,
    tpot: float, steady: Steadiness,
) -> Result | str:  # fmt: skip
    """The run, or the reason why it is no measured point. ttft, tpot: ms. load: requests."""
    if outputs < 2.0:
        return "answers of one token: no time per token"
    if tpot <= 0.0 or ttft <= 0.0:
        return "TTFT or TPOT is 0: the answers were not streamed"
    if doubt := steady.doubt():
        return doubt
    finite("input tokens", inputs, 1.0, 1e7)
    finite("requests under way", load, 1e-3, 1e6)
    return Result(model, day, inputs, outputs, max(1.0, load), ttft, tpot)


def optional(raw: Any, name: str) -> float:
    """An optional number; 0 if the result lacks it."""
    value = raw.get(name) if isinstance(raw, Mapping) else None
    return 0.0 if value is None or value == "" else finite_value(name, value)


def optional_duration(raw: Any, name: str) -> float:
    """An optional duration; 0 if the result lacks it. InvalidValue: it is 0, which no run is."""
    value = optional(raw, name)
    if value == 0.0 and isinstance(raw, Mapping) and raw.get(name) not in (None, ""):
        raise InvalidValue(name, raw[name], "a number above 0")
    return value


def number(raw: Mapping[str, Any], name: str) -> float:
    return finite_value(name, raw.get(name))


def finite_value(name: str, value: Any) -> float:
    try:
        return finite(name, float(value), 0.0, 1e12)
    except (TypeError, ValueError, OverflowError):
        shown = value if len(repr(value)) <= _SHOWN else repr(value)[:_SHOWN]
        raise InvalidValue(name, shown, "a finite number from 0") from None


def find(raw: Any, path: tuple[str, ...]) -> Any:
    """The first value at `path` anywhere in `raw`."""
    if isinstance(raw, Mapping):
        if path[0] in raw:
            inner = raw[path[0]]
            if len(path) == 1:
                return inner
            if isinstance(inner, Mapping) and path[1] in inner:
                return inner[path[1]]
        for value in raw.values():
            found = find(value, path)
            if found is not None:
                return found
    return None


def day_in(text: str) -> str:
    found = _DAY.search(text)
    return f"{found[1]}-{found[2]}-{found[3]}" if found else ""


def day_of(start: Any) -> str:
    """The day (YYYY-MM-DD) of a timestamp in seconds or as text."""
    if isinstance(start, (int, float)) and 1e9 < start < 1e11:
        return datetime.fromtimestamp(float(start), UTC).date().isoformat()
    return day_in(str(start or ""))
