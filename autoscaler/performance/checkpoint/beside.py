"""The quantisation that stands in a file beside the configuration, as ModelOpt once wrote it."""

from __future__ import annotations

import json
from typing import Any

QUANTISATION_FILE = "hf_quant_config.json"


def with_quantisation(text: str, beside: str) -> str:
    """The text of a `config.json` with the quantisation in `beside`, an `hf_quant_config.json`; as
    it is where it has one itself, or where one of the two is not readable."""
    try:
        config: Any = json.loads(text)
        how: Any = json.loads(beside)
    except (ValueError, RecursionError):
        return text
    if not isinstance(config, dict) or not isinstance(how, dict) or _says(config):
        return text
    return json.dumps({**config, "quantization_config": {"quant_method": "modelopt", **how}})


def _says(config: dict[str, Any]) -> bool:
    inner = [value for value in config.values() if isinstance(value, dict)]
    return any(place.get("quantization_config") for place in (config, *inner))
