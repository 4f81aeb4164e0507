"""Parses the section of an executor's configuration that declares a vLLM.

Unknown keys are refused. The operator writes this section, and nothing else decides which weights
an engine may load and which arguments it gets.
"""

from __future__ import annotations

import re
from typing import Any

from executors.engines.vllm.vllm_kind import KvTransfer, VllmKind
from topics.checks import InvalidValue, count, flag, number, object_fields, one_of, text, texts
from topics.engine_args import reserved_argument

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")
_DEFAULTS: dict[str, Any] = {
    "executable": "vllm",
    "image": "",
    "args": [],
    "env": {},
    "quantization": None,
    "pipeline_parallel": 1,
    "layers": [],
    "max_num_seqs": None,
    "kv_transfer": None,
    "startup_s": None,
    "stop_s": 60.0,
    "device": "cuda",
    "pipelines": "none",
    "sleep": False,
}


def parse_vllm(where: str, raw: Any) -> VllmKind:
    """The vLLM that `raw` declares. Raises InvalidValue, which names the offending field."""
    item = object_fields(where, raw, ("kind", "weights"), _DEFAULTS)
    text(f"{where}.executable", item["executable"], 4000)
    text(f"{where}.image", item["image"])
    if item["image"].startswith("-"):
        raise InvalidValue(f"{where}.image", item["image"], "the name of an image")
    args = texts(f"{where}.args", item["args"])
    owned = reserved_argument(args)
    if owned is not None:
        raise InvalidValue(f"{where}.args", owned, "arguments that the executor does not set")
    if item["quantization"] is not None:
        one_of(f"{where}.quantization", item["quantization"], ("bf16", "fp8", "fp4", "int4"))
    one_of(f"{where}.device", item["device"], ("cuda", "cpu"))
    one_of(f"{where}.pipelines", item["pipelines"], ("none", "same-slice", "same-size"))
    flag(f"{where}.sleep", item["sleep"])
    if item["sleep"] and item["device"] == "cpu":
        raise InvalidValue(f"{where}.sleep", True, "false with device cpu, which frees nothing")
    count(f"{where}.pipeline_parallel", item["pipeline_parallel"], 64)
    stages = item["pipeline_parallel"]
    if stages < 1:
        raise InvalidValue(f"{where}.pipeline_parallel", stages, "at least 1 stage")
    if item["max_num_seqs"] is not None:
        count(f"{where}.max_num_seqs", item["max_num_seqs"], 100_000)
    if item["startup_s"] is not None:
        number(f"{where}.startup_s", item["startup_s"], 0.0, 86_400.0)
    number(f"{where}.stop_s", item["stop_s"], 0.0, 86_400.0)
    return VllmKind(
        executable=item["executable"],
        weights=texts(f"{where}.weights", item["weights"]),
        args=args,
        env=_variables(f"{where}.env", item["env"]),
        quantization=item["quantization"],
        pipeline_parallel=stages,
        layers=_layers(f"{where}.layers", item["layers"], stages),
        max_num_seqs=item["max_num_seqs"],
        kv_transfer=_kv_transfer(f"{where}.kv_transfer", item["kv_transfer"], item["device"]),
        declared_startup_s=item["startup_s"],
        declared_stop_s=item["stop_s"],
        cpu=item["device"] == "cpu",
        image=item["image"],
        pipelines=item["pipelines"],
        sleeps=item["sleep"],
    )


def _kv_transfer(where: str, raw: Any, device: str) -> KvTransfer | None:
    if raw is None:
        return None
    defaults = {"device": device, "policy": "fail", "lease_s": 30}
    item = object_fields(where, raw, (), defaults)
    one_of(f"{where}.device", item["device"], ("cuda", "cpu"))
    one_of(f"{where}.policy", item["policy"], ("fail", "recompute"))
    count(f"{where}.lease_s", item["lease_s"], 3600)
    return KvTransfer(item["device"], item["policy"], item["lease_s"])


def _layers(where: str, raw: Any, stages: int) -> tuple[int, ...]:
    if not isinstance(raw, list):
        raise InvalidValue(where, raw, "a JSON array")
    for index, layers in enumerate(raw):
        count(f"{where}[{index}]", layers, 10_000)
    if raw and (len(raw) != stages or not all(raw)):
        raise InvalidValue(where, raw, f"{stages} whole numbers of at least 1, one per stage")
    return tuple(raw)


def _variables(where: str, raw: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, dict):
        raise InvalidValue(where, raw, "a JSON object")
    for key, value in raw.items():
        if not _VARIABLE.match(key):
            raise InvalidValue(where, key, "names of capital letters, digits and _")
        text(f"{where}.{key}", value, 4000)
    return tuple(raw.items())
