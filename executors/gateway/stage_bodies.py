"""Bodies between the gateway and the stages of a model of components.

A stage gets an OpenAI request with the field `stage`: the components to run and the outputs of
earlier components. Every stage except the last answers with `stage_outputs`, an object that maps
components to outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from executors.gateway.openai_format import ApiCall, engine_body, with_fields
from executors.gateway.wire.body_blocks import Blocks
from topics.routing import Hop


def stage_body(call: ApiCall, hop: Hop, outputs: Mapping[str, Any]) -> Blocks:
    """The body for a stage before the last one."""
    varying = {
        k: v for k, v in call.varying_fields.items() if k not in ("stream", "stream_options")
    }
    return with_fields(call, {**varying, "stream": False, "stage": _stage(hop, outputs, False)})


def final_stage_body(call: ApiCall, hop: Hop, outputs: Mapping[str, Any]) -> Blocks:
    """The body for the stage that answers the client."""
    return engine_body(call, stage=_stage(hop, outputs, True))


def _stage(hop: Hop, outputs: Mapping[str, Any], last: bool) -> dict[str, Any]:
    return {"runs": list(hop.runs), "outputs": dict(outputs), "last": last}


def stage_outputs_of(raw: bytes) -> dict[str, Any] | None:
    """The outputs in the response of a stage, by component; None if the response has none."""
    try:
        outputs = orjson.loads(raw).get("stage_outputs")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return outputs if isinstance(outputs, dict) else None
