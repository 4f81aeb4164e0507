"""Read the quantisation from ModelOpt's separate file `hf_quant_config.json`."""

from __future__ import annotations

import json
from typing import Any

QUANTISATION_FILE = "hf_quant_config.json"


def with_quantisation(text: str, quantisation_text: str) -> str:
    """`text` (a `config.json`) with the quantisation in `quantisation_text` (an
    `hf_quant_config.json`).

    `text` is returned unchanged if it contains a quantisation, or if either text is not readable.
    """
    try:
        config: Any = json.loads(text)
        how: Any = json.loads(quantisation_text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(config, dict) or not isinstance(how, dict) or _has_quantisation(config):
        return text
    return json.dumps({**config, "quantization_config": {"quant_method": "modelopt", **how}})


def _has_quantisation(config: dict[str, Any]) -> bool:
    inner = [value for value in config.values() if isinstance(value, dict)]
    return any(place.get("quantization_config") for place in (config, *inner))
