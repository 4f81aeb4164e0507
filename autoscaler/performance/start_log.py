"""Reads the memory of an engine from the log of its start, in the forms of vLLM 0.5 to 0.33.

A log may hold several starts; the last one counts. Lines of several GPUs give the least KV cache,
because the GPU with the least memory decides, and the most memory for weights and graphs.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from autoscaler.domain.validation import InvalidValue
from topics.engine_start import EngineStart

_N = r"(-?[\d,]+(?:\.\d+)?)"
_MEMORY = _N + r" ?(GiB|GB|MiB|MB)"
_BYTES = {"GiB": 2**30, "GB": 2**30, "MiB": 2**20, "MB": 2**20}
"""vLLM's early versions write GB for 2**30 bytes."""
_START = re.compile(r"vLLM API server version|Initializing an? (?:V1 )?LLM engine")
_SERVER = re.compile(r"vLLM API server version")
_KV_MEMORY = re.compile(
    r"Available KV cache memory: " + _MEMORY + r"|reserved for KV Cache is " + _MEMORY
)
_KV_TOKENS = re.compile(r"(?:GPU|CPU) KV cache size: " + _N + r" tokens")
_CONCURRENCY = re.compile(r"Maximum concurrency for " + _N + r" tokens per request: " + _N + "x")
_WEIGHTS = re.compile(
    r"(?:Loading model weights took|Model loading took|model weights take) " + _MEMORY
)
_GRAPHS = re.compile(r"Graph capturing finished in " + _N + r" secs?, took " + _MEMORY)
_NO_MEMORY = re.compile(r"No available memory for the cache blocks")
_FEW_TOKENS = re.compile(
    r"max seq len \(" + _N + r"\) is larger than the maximum number of tokens that can be stored "
    r"in KV cache \(" + _N + r"\)"
)
_NEEDS_MORE = re.compile(
    r"max seq len \(" + _N + r"\), \(" + _MEMORY + r" KV cache is needed, which is larger than the "
    r"available KV cache memory \(" + _MEMORY + r"\)"
)
_STATES = re.compile(r"exceeds (?:the )?available Mamba cache blocks")
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory\.|HIP out of memory\.")
_TOTAL = re.compile(r"total capacity of " + _MEMORY)
_OWN = re.compile(r"this process has " + _MEMORY + r" memory in use")
_OWN_SHARE = 0.75
"""Share of a GPU's memory from which a process that runs out of it has itself used it up. Below,
other processes on the GPU may be the cause."""
_MODEL = re.compile(r"with config: .*?\bmodel='([^']+)'")
_PARALLEL = re.compile(r"tensor_parallel_size=(\d+)(?:.*?pipeline_parallel_size=(\d+))?")
_LENGTH = re.compile(r"\bmax_seq_len=(\d+)")
_ARGS = re.compile(r"non-default args: (\{.*\})")


@dataclass(frozen=True, slots=True)
class LoggedStart:
    """The last start in a log. model: name or path as the log states it, "" = not stated. gpus:
    number of GPUs of one engine, 0 = not stated. args: its arguments that are not defaults, None =
    not stated. starts: number of starts in the log."""

    start: EngineStart
    model: str = ""
    gpus: int = 0
    args: tuple[tuple[str, object], ...] | None = None
    starts: int = 1


def read_start(text: str) -> LoggedStart:
    """The last start in the log `text`. Raises InvalidValue if it states no KV cache and no refusal
    for lack of memory, or an impossible figure."""
    parts = _starts(text.splitlines())
    found = _read_part(parts[-1])
    shown = found.start
    if not (shown.kv_tokens or shown.kv_bytes or shown.refused):
        allowed = "a whole log of a start of vLLM, with its line on the KV cache"
        about = f"the last of {len(parts)} starts" if len(parts) > 1 else f"{len(text)} characters"
        raise InvalidValue("log", about, allowed)
    return LoggedStart(shown, found.model, found.gpus, found.args, len(parts))


def _starts(lines: Iterable[str]) -> list[list[str]]:
    """The lines of each start. Engines of one server that share the work begin together, so a new
    start begins only after a result of the one before, or with another server."""
    parts: list[list[str]] = [[]]
    servers, has_result = 0, False
    for line in lines:
        if _START.search(line):
            server = bool(_SERVER.search(line))
            if has_result or (server and servers):
                parts.append([])
                servers, has_result = 0, False
            servers += server
        has_result = has_result or bool(_KV_TOKENS.search(line) or _refusal(line))
        parts[-1].append(line)
    return parts


def _refusal(line: str) -> str:
    if _NO_MEMORY.search(line):
        return "no_kv_memory"
    if _FEW_TOKENS.search(line) or _NEEDS_MORE.search(line):
        return "too_long"
    if _STATES.search(line):
        return "states"
    if _OUT_OF_MEMORY.search(line):
        total, own = _TOTAL.search(line), _OWN.search(line)
        if total and own and _memory(own) >= _OWN_SHARE * _memory(total):
            return "out_of_memory"
    return ""


def _read_part(lines: list[str]) -> LoggedStart:
    kv: list[int] = []
    sizes: list[tuple[int, int]] = []
    concurrencies: list[tuple[int, float]] = []
    tokens: list[int] = []
    weights, graphs, gpus, longest = 0, 0, 0, 0
    refused, model, args = "", "", None
    for line in lines:
        if found := _KV_MEMORY.search(line):
            kv.append(_memory(found))
        if found := _KV_TOKENS.search(line):
            tokens.append(_whole(found[1]))
        if found := _CONCURRENCY.search(line):
            concurrencies.append((_whole(found[1]), _number(found[2])))
        if found := _WEIGHTS.search(line):
            weights = max(weights, _memory(found))
        if found := _GRAPHS.search(line):
            graphs = max(graphs, _memory(found, 2))
        if found := _FEW_TOKENS.search(line):
            longest = _whole(found[1])
            sizes.append((_whole(found[2]), _whole(found[2])))
        if found := _NEEDS_MORE.search(line):
            longest = _whole(found[1])
            kv.append(_memory(found, 4))
        refused = refused or _refusal(line)
        if found := _MODEL.search(line):
            model = model or found[1]
        if "LLM engine" in line and (found := _PARALLEL.search(line)):
            gpus = int(found[1]) * int(found[2] or 1)
            if length := _LENGTH.search(line):
                longest = longest or int(length[1])
        if found := _ARGS.search(line):
            args = _arguments(found[1])
    each = min((length for length, _ in concurrencies), default=0)
    if tokens and (each or longest):
        sizes.append((min(tokens), each or longest))
    elif concurrencies:
        sizes.append(min((int(times * length), length) for length, times in concurrencies))
    size, at = min(sizes, default=(0, 0))
    if kv and min(kv) <= 0 and not refused:
        refused = "no_kv_memory"
    if refused:
        # The memory that is left says more than a number of tokens for one length.
        size, at = (0, 0) if kv else (size, at)
    try:
        start = EngineStart(
            kv_bytes=max(0, min(kv, default=0)),
            kv_tokens=size,
            request_tokens=at if size else 0,
            weights_bytes=weights,
            graphs_bytes=graphs,
            refused=refused,
            max_len=each or longest,
        )
    except InvalidValue as error:
        raise InvalidValue(f"log: {error.field}", error.value, error.allowed) from None
    return LoggedStart(start, model, gpus, args)


def _arguments(text: str) -> tuple[tuple[str, object], ...] | None:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return tuple((str(k), v) for k, v in value.items()) if isinstance(value, dict) else None


def _memory(found: re.Match[str], group: int = 1) -> int:
    """Bytes of the first amount of memory that `found` holds from `group` on."""
    parts = found.groups()[group - 1 :]
    amount, unit = next((a, b) for a, b in itertools.pairwise(parts) if b in _BYTES)
    return int(min(_number(amount), 1e15) * _BYTES[unit])


def _whole(text: str) -> int:
    return int(min(_number(text), 1e15))


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0
