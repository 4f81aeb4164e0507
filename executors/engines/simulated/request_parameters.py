"""Checks the parameters of a request as vLLM 0.32 does, from a table of names, types and ranges.
Values are read as leniently as in vLLM: "yes" is true, "5" is 5. A value of a wrong type gives a
"Bad Request" about `body.NAME`, a value out of range a "BadRequestError".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson

_TYPES = {400: "BadRequestError", 404: "NotFoundError"}
_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")
_INT64 = 2**63 - 1
_MAX_LOGPROBS = 20


class ApiError(Exception):
    """A refusal in OpenAI's format. kind: its type, "" = the default of its status."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self._kind = kind

    def body(self) -> bytes:
        """The error as a JSON object."""
        error = {
            "message": str(self),
            "type": self._kind or _TYPES.get(self.status, "InternalServerError"),
            "param": self.param,
            "code": self.status,
        }
        return orjson.dumps({"error": error})


def malformed(name: str, wanted: str) -> ApiError:
    """The error for a value of the wrong type."""
    where = f"body.{name}"
    return ApiError(400, f"1 validation error: {where}: {wanted}", where, "Bad Request")


def flag(raw: Mapping[str, Any], name: str) -> bool:
    """A boolean; False if the request lacks the parameter."""
    value = raw.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    word = str(value).lower() if isinstance(value, (str, int, float)) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise malformed(name, "Input should be a valid boolean")


def integer(raw: Mapping[str, Any], name: str) -> int | None:
    """A whole number; None if the request lacks the parameter."""
    value = raw.get(name)
    if value is None:
        return None
    try:
        number = int(value) if not isinstance(value, float) else _whole(value)
    except (TypeError, ValueError):
        raise malformed(name, "Input should be a valid integer") from None
    if abs(number) > _INT64:
        raise malformed(name, f"Input should be at most {_INT64}")
    return number


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError
    return int(value)


def _real(raw: Mapping[str, Any], name: str) -> float | None:
    value = raw.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise malformed(name, "Input should be a valid number") from None
    if not math.isfinite(number):
        raise malformed(name, "Input should be a finite number")
    return number


def _texts(raw: Mapping[str, Any], name: str) -> list[str]:
    value = raw.get(name)
    found = [value] if isinstance(value, str) and name == "stop" else value or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise malformed(name, "Input should be a valid string or list of strings")
    return found


def _numbers(raw: Mapping[str, Any], name: str) -> list[int] | None:
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise malformed(name, "Input should be a valid list of integers")
    return value


def _objects(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if value is not None and not isinstance(value, dict):
        raise malformed(name, "Input should be a valid dictionary")
    return value or {}


def _out_of_range(name: str, value: object, allowed: str) -> ApiError:
    return ApiError(400, f"{name} must be {allowed}, got {value}.", name)


_RANGES: Mapping[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda x: 0 <= x <= 2, "in [0, 2]"),
    "top_p": (lambda x: 0 < x <= 1, "in (0, 1]"),
    "min_p": (lambda x: 0 <= x <= 1, "in [0, 1]"),
    "presence_penalty": (lambda x: -2 <= x <= 2, "in [-2, 2]"),
    "frequency_penalty": (lambda x: -2 <= x <= 2, "in [-2, 2]"),
    "repetition_penalty": (lambda x: x > 0, "greater than zero"),
    "length_penalty": (lambda _: True, ""),
}
_WHOLE: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "n": (lambda x: x >= 1, "at least 1"),
    "max_tokens": (lambda x: x >= 1, "at least 1"),
    "max_completion_tokens": (lambda x: x >= 1, "at least 1"),
    "min_tokens": (lambda x: x >= 0, "greater than or equal to 0"),
    "top_k": (lambda x: x >= -1, "0 (disable), or at least 1"),
    "prompt_logprobs": (lambda x: x >= -1, "a positive value or -1"),
    "truncate_prompt_tokens": (lambda x: x >= -1 and x != 0, "greater than or equal to -1"),
    "seed": (lambda _: True, ""),
    "priority": (lambda _: True, ""),
}
_FLAGS = ("ignore_eos", "echo", "add_special_tokens", "skip_special_tokens", "use_beam_search")


def check(raw: Mapping[str, Any], chat: bool, has_tools: bool = False) -> None:
    """Refuse requests that vLLM refuses or this engine does not support; raises ApiError.
    has_tools: whether the engine's arguments enable tools (no answer ever calls one)."""
    for name, (real_fits, allowed) in _RANGES.items():
        real = _real(raw, name)
        if real is not None and not real_fits(real):
            raise _out_of_range(name, real, allowed)
    for name, (fits, allowed) in _WHOLE.items():
        whole = integer(raw, name)
        if whole is not None and not fits(whole):
            raise _out_of_range(name, whole, allowed)
    for name in _FLAGS:
        flag(raw, name)
    if "" in _texts(raw, "stop"):
        raise ApiError(400, "stop cannot contain an empty string.")
    _texts(raw, "bad_words")
    _numbers(raw, "stop_token_ids")
    if _numbers(raw, "allowed_token_ids") == []:
        raise ApiError(400, "allowed_token_ids is not None and empty!", "allowed_token_ids")
    for token, bias in _objects(raw, "logit_bias").items():
        if not token.isdigit():
            raise ApiError(400, "logit_bias contains keys that are no token ids", "logit_bias")
        _real({"logit_bias": bias}, "logit_bias")
    for name in ("vllm_xargs", "kv_transfer_params", "ec_transfer_params"):
        _objects(raw, name)
    if raw.get("user") is not None and not isinstance(raw["user"], str):
        raise malformed("user", "Input should be a valid string")
    if raw.get("suffix") is not None:
        raise ApiError(400, "suffix is not supported by this model", "suffix")
    if raw.get("stream_options") is not None and not flag(raw, "stream"):
        raise ApiError(
            400, "Stream options can only be defined when `stream=True`.", "stream_options"
        )
    _objects(raw, "stream_options")
    _logprobs(raw, chat)
    if chat:
        _tools(raw, has_tools)
    _formats(raw)


def _logprobs(raw: Mapping[str, Any], chat: bool) -> None:
    if not chat:
        asked = integer(raw, "logprobs")
        if asked is not None and not 0 <= asked <= _MAX_LOGPROBS:
            allowed = f"greater than max allowed: {_MAX_LOGPROBS}"
            raise ApiError(
                400, f"Requested sample logprobs of {asked}, which is {allowed}", "logprobs"
            )
        return
    top = integer(raw, "top_logprobs")
    if top and not flag(raw, "logprobs"):
        raise ApiError(
            400, "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
        )
    flag(raw, "logprobs")


def _tools(raw: Mapping[str, Any], enabled: bool) -> None:
    """Refuse tools as vLLM refuses them if its arguments do not enable them."""
    tools, choice = raw.get("tools"), raw.get("tool_choice")
    if tools is not None and not isinstance(tools, list):
        raise malformed("tools", "Input should be a valid list")
    if tools == []:
        raise malformed("tools", "List should have at least 1 item")
    if not tools and choice not in (None, "none"):
        raise ApiError(400, "When using `tool_choice`, `tools` must be set.", "tool_choice")
    if not tools or choice == "none" or enabled:
        return
    if choice in (None, "auto"):
        needed = "--enable-auto-tool-choice and --tool-call-parser to be set"
        raise ApiError(400, f'"auto" tool choice requires {needed}')
    raise ApiError(400, f"tool_choice={choice!r} requires --tool-call-parser to be set")


def _formats(raw: Mapping[str, Any]) -> None:
    """Refuse constrained output, which this engine does not support."""
    wanted = _objects(raw, "response_format").get("type", "text")
    if wanted not in ("text", "json_object", "json_schema", "structural_tag"):
        raise malformed("response_format.type", "Input should be 'text' or 'json_schema'")
    for name in ("response_format", "structured_outputs"):
        if raw.get(name) is not None and (name != "response_format" or wanted != "text"):
            raise ApiError(400, f"{name}: the simulated engine writes no structured output", name)
