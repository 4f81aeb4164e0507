"""The models of a running vLLM server, from its `/v1/models`."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

import orjson

from streams.files.config_draft import DraftModel, parse_model
from streams.files.prometheus_section import url as server_url
from streams.files.user_errors import UserError, without_login

_TIMEOUT_S = 5.0
_MOST_BYTES = 1_000_000


def served_models(url: str) -> tuple[DraftModel, ...]:
    """The base models that the server at `url` serves, without LoRA adapters. UserError: no server
    answers, or it names no model."""
    address = f"{server_url(url)}/v1/models"
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:  # noqa: S310  checked
            content = orjson.loads(answer.read(_MOST_BYTES))
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", error)
        raise UserError(f"--vllm {without_login(url)}: no model list ({why})") from None
    entries = content.get("data") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"--vllm {without_login(url)}: /v1/models is no list of models")
    models = tuple(model for entry in entries if (model := _base_model(entry)) is not None)
    if not models:
        raise UserError(f"--vllm {without_login(url)}: the server names no model")
    return models


def _base_model(entry: Any) -> DraftModel | None:
    """The model of one entry; None for a LoRA adapter or an entry without a name."""
    if not isinstance(entry, dict) or entry.get("parent"):
        return None
    served = entry.get("id")
    if not isinstance(served, str) or not served:
        return None
    root, longest = entry.get("root"), entry.get("max_model_len")
    source = root if isinstance(root, str) and root else served
    name = parse_model(served).name
    return DraftModel(name, source, longest if isinstance(longest, int) and longest > 0 else 0)
