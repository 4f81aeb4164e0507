"""Read the table that `vllm bench serve` and SGLang's `bench_serving` print.

The lines before a table name the model, the rate and the concurrency. A log with several tables
gives several results. Each becomes the same object as in the JSON of `--save-result`.
"""

from __future__ import annotations

import re
from typing import Any

_TITLE = "Serving Benchmark Result"
_LINE = re.compile(r"[\s#|]*([A-Z][\w ./()-]{3,60}?):\s+(\S+)\s*\Z")
_END = re.compile(r"[\s#|]*={20,}\s*\Z")
_ARGUMENT = re.compile(
    r"\b(model|request_rate|max_concurrency|num_prompts|ramp_up_strategy)="
    r"('[^']{0,200}'|\"[^\"]{0,200}\"|[\w.+-]{1,40})"
)
_NAMES = {
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Maximum request concurrency": "max_concurrency",
    "Max request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Traffic request rate": "request_rate",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
    "Mean TTFT (ms)": "mean_ttft_ms",
    "Mean TPOT (ms)": "mean_tpot_ms",
}
_MISSING = ("None", "inf", "not", "N/A")


def is_printed(text: str) -> bool:
    """Whether `text` has a printed table."""
    return text.lstrip()[:1] not in ("{", "[") and _TITLE in text


def printed_results(text: str) -> list[Any]:
    """The tables in `text` as results; for a table without the needed lines, the reason."""
    found: list[Any] = []
    values: dict[str, Any] = {}
    inside = False
    for line in text.splitlines():
        if _TITLE in line:
            # The lines before the table belong to it.
            inside = True
        elif inside and _END.match(line):
            found.append(_result(values))
            values, inside = {}, False
        elif (match := _LINE.match(line)) and match[1] in _NAMES:
            values[_NAMES[match[1]]] = None if match[2] in _MISSING else match[2]
        elif not inside:
            for name, value in _ARGUMENT.findall(line):
                key = "model_id" if name == "model" else name
                values[key] = None if value in _MISSING else value.strip("'\"")
    if inside:
        found.append("the table is cut off before its end")
    return found


def _result(values: dict[str, Any]) -> Any:
    missing = [
        label for label, name in _NAMES.items() if name in _NEEDED and values.get(name) is None
    ]
    return f"the table has no line {missing[0]!r}" if missing else dict(values)


_NEEDED = (
    "completed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput",
    "mean_ttft_ms", "mean_tpot_ms",
)  # fmt: skip
