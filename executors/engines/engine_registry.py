"""Engine kinds, parsed from an executor's configuration.

To add a kind, add one line to `_KINDS`, or install an extension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from autoscaler.serving.engine_setup import Measurement
from executors.engines.engine_protocol import EngineKind
from executors.engines.simulated.simulated_kind import SimulatedKind
from executors.engines.simulated.stage_kind import parse_stage
from executors.engines.vllm.vllm_config import parse_vllm
from topics.checks import InvalidValue, flag, name, number, object_fields, one_of, text, texts
from topics.codec import read_value
from topics.engine_profiles import profile_wire_name
from topics.extensions import Group, extensions

Parser = Callable[[str, Any], EngineKind]


def parse_engines(where: str, raw: Any) -> dict[str, EngineKind]:
    """The declared engines by wire name, which includes the hash of the engine's profile."""
    if not isinstance(raw, dict):
        raise InvalidValue(where, raw, "a JSON object")
    found = {}
    for key, section in raw.items():
        name(where, key)
        kind = parse_engine(f"{where}.{key}", section)
        found[profile_wire_name(key, section.get("image", ""), section.get("args", ()))] = kind
    return found


def parse_engine(where: str, raw: Any) -> EngineKind:
    """The engine that `raw` declares. Raises InvalidValue, which names the offending field."""
    if not isinstance(raw, dict):
        raise InvalidValue(where, raw, "a JSON object")
    kind = raw.get("kind")
    added: dict[str, Parser] = {one.name: one.value for one in extensions(Group.ENGINES)}
    kinds = {**_KINDS, **added}
    one_of(f"{where}.kind", kind, tuple(kinds))
    return kinds[str(kind)](where, raw)


def _simulated(where: str, raw: Any) -> EngineKind:
    profile: dict[str, Any] = {"image": "", "args": []}
    defaults = {"quantization": None, "max_num_seqs": None, "startup_s": None, **profile}
    defaults["measurements"] = []
    defaults["sleep"] = False
    item = object_fields(where, raw, ("kind",), defaults)
    if item["quantization"] is not None:
        one_of(f"{where}.quantization", item["quantization"], ("bf16", "fp8", "fp4", "int4"))
    if item["max_num_seqs"] is not None:
        number(f"{where}.max_num_seqs", item["max_num_seqs"], 1, 100_000)
    if item["startup_s"] is not None:
        number(f"{where}.startup_s", item["startup_s"], 0.0, 86_400.0)
    text(f"{where}.image", item["image"])
    texts(f"{where}.args", item["args"])
    flag(f"{where}.sleep", item["sleep"])
    measured = read_value(tuple[Measurement, ...], item["measurements"])
    return SimulatedKind(
        item["quantization"], item["max_num_seqs"], item["startup_s"], measured, item["image"],
        item["sleep"], tuple(item["args"]),
    )  # fmt: skip


_KINDS: Mapping[str, Parser] = MappingProxyType(
    {"simulated": _simulated, "simulated-stage": parse_stage, "vllm": parse_vllm}
)
