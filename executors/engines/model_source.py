"""Resolves an engine's `source`: a name of the catalogue, or a config.json on this node."""

from __future__ import annotations

from pathlib import Path

from autoscaler.performance.config_json import architecture_of
from autoscaler.serving.engine_setup import InvalidValue, ModelSpec


def architecture(source: str) -> ModelSpec | str:
    """The model that `source` describes, if that is a file; any other `source` unchanged. Raises
    InvalidValue if the file is unreadable."""
    if not source.endswith(".json"):
        return source
    try:
        return architecture_of(source, Path(source).read_text(encoding="utf-8"), "source")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue("source", source, f"a config.json that can be read ({error})") from None
