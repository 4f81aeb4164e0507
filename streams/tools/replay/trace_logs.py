"""Requests in the text logs of vLLM and SGLang, as rows of a trace.

SGLang (`--log-requests`) writes one line per finished request, with its tokens and latency. vLLM
(`--enable-log-requests`, `--enable-log-outputs`) writes one line at the arrival and one at the end
of a request. Both have the token ids, which are counted here. vLLM leaves the year out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from streams.files.user_errors import UserError

_VLLM_CAME = re.compile(r"(\d\d-\d\d \d\d:\d\d:\d\d).*?Received request ([^\s:]+):")
_VLLM_ENDED = re.compile(r"Generated response ([^\s:]+)(?: \([^)]*\))?:.*output_token_ids: (\S+)")
_IDS = re.compile(r"prompt_token_ids: \[([\d,\s]*)\]")
_OUT_IDS = re.compile(r"output_token_ids: \[([\d,\s]*)\]")
_SGLANG = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?)[^\]]{0,80}\]?\s+Finish: obj="
)
_SGLANG_FIELDS = {
    "prompt_tokens": re.compile(r"'prompt_tokens': (\d+)"),
    "completion_tokens": re.compile(r"'completion_tokens': (\d+)"),
    "e2e_latency": re.compile(r"'e2e_latency': ([\d.]+)"),
}
_CAME, _ENDED, _FINISH = "Received request ", "Generated response ", "Finish: obj="
_SOME = 200_000
_LEAP_YEAR = 2024

Numbered = tuple[str, dict[str, object]]


def is_log(text: str) -> bool:
    """Whether `text` has lines of a server's request log near its start."""
    if text.lstrip()[:1] == "{":
        return False
    for line in text[:_SOME].split("\n"):
        if (_CAME in line and _VLLM_CAME.search(line)) or (
            _FINISH in line and _SGLANG.search(line)
        ):
            return True
    return False


def log_rows(path: Path, text: str) -> Iterator[Numbered]:
    """Requests of the log. UserError: the log has no token counts."""
    came: dict[str, tuple[str, str, int]] = {}
    year, month = _LEAP_YEAR, 0
    found = 0
    for number, line in enumerate(text.split("\n"), 1):
        place = f"{path}:{number}"
        if _FINISH in line and (match := _SGLANG.search(line)):
            found += 1
            yield place, _finished(place, match[1], line)
        elif _CAME in line and (match := _VLLM_CAME.search(line)):
            if int(match[1][:2]) < month - 6:
                year += 1
            month = int(match[1][:2])
            ids = _IDS.search(line)
            came[match[2]] = place, f"{year}-{match[1]}", _count(ids[1]) if ids else -1
        elif _ENDED in line and (match := _VLLM_ENDED.search(line)):
            place, at, read = came.pop(match[1], ("", "", 0))
            ids = _OUT_IDS.search(line)
            if place and read >= 0 and ids:
                found += 1
                yield place, {"time": at, "input_tokens": read, "output_tokens": _count(ids[1])}
    if not found:
        raise UserError(
            f"{path}: a server's log without the tokens of its requests; allowed: SGLang with "
            "--log-requests, or vLLM with --enable-log-requests and --enable-log-outputs, whose "
            "lines have prompt_token_ids and output_token_ids"
        )


def _finished(place: str, at: str, line: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, pattern in _SGLANG_FIELDS.items():
        match = pattern.search(line)
        if match is None:
            raise UserError(f"{place}: {name} is missing in this line of a finished request")
        values[f"out.meta_info.{name}"] = match[1]
    try:
        datetime.fromisoformat(at)
    except ValueError:
        raise UserError(f"{place}: {at!r} is no time") from None
    return {"event": "request.finished", "rid": place, "timestamp": at, **values}


def _count(ids: str) -> int:
    return ids.count(",") + 1 if ids.strip() else 0
