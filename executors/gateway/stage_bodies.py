"""Bodies of the hops through a model of components.

Owns the wire form between gateway and stages: an OpenAI request with the field `stage`, which names
the components to run and what earlier ones made; every stage but the last answers with
`stage_outputs`, an object by component. Knows nothing of routes and sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from executors.gateway.openai_format import Call, engine_body, with_fields
from executors.gateway.wire.body_blocks import Blocks
from topics.routing import Hop


def body_of(call: Call, hop: Hop, outputs: Mapping[str, Any]) -> Blocks:
    """What a stage before the last one gets."""
    varying = {k: v for k, v in call.varying.items() if k not in ("stream", "stream_options")}
    return with_fields(call, {**varying, "stream": False, "stage": _stage(hop, outputs, False)})


def last_body(call: Call, hop: Hop, outputs: Mapping[str, Any]) -> Blocks:
    """What the stage that answers the client gets."""
    return engine_body(call, stage=_stage(hop, outputs, True))


def _stage(hop: Hop, outputs: Mapping[str, Any], last: bool) -> dict[str, Any]:
    return {"runs": list(hop.runs), "outputs": dict(outputs), "last": last}


def outputs_of(raw: bytes) -> dict[str, Any] | None:
    """What a stage made, by component; None where its answer says nothing of it."""
    try:
        outputs = orjson.loads(raw).get("stage_outputs")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return outputs if isinstance(outputs, dict) else None
