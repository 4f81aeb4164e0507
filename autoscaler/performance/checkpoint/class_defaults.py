"""Defaults of configuration classes, which publishers leave out of their files.

The facts come from Hugging Face transformers; `data/class_defaults.json` states the version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

_ESSENTIAL = frozenset({"num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size"})


@lru_cache(maxsize=1)
def _facts() -> Mapping[str, Any]:
    path = resources.files("autoscaler").joinpath("data", "class_defaults.json")
    facts: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts


def defaults_of(kind: str) -> Mapping[str, Any]:
    """Defaults of the configuration class for the model type `kind`; empty if the type is
    unknown."""
    found: Mapping[str, Any] = _facts()["types"].get(kind, {})
    return found


def optional_defaults(kind: str) -> Mapping[str, Any]:
    """The defaults without the sizes that the file of every language model states. So a file that
    lacks these sizes is refused, and does not count as a model of the default size.
    """
    return {key: value for key, value in defaults_of(kind).items() if key not in _ESSENTIAL}


def text_type_of(kind: str) -> str:
    """Model type of the language model inside the multimodal type `kind`; "" if unknown."""
    return str(_facts()["text"].get(kind, ""))
