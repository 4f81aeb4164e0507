"""A first `shoal.yaml` from a few answers: models, limits, GPUs and expected requests.

`as_yaml` writes the text; the caller reads it back with `load_config`, so that a draft obeys the
same rules as any other file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.domain.validation import InvalidValue
from streams.files import units

_POOL = re.compile(
    r"\s*(?:(?P<each>[1248])x)?(?P<gpu>[\w./-]+):(?P<nodes>\d+)@(?P<price>owned|[0-9.]+)\s*\Z"
)
_WORKLOAD = re.compile(r"\s*(?P<rate>[0-9.]+)\s*x\s*(?P<input>\d+)\s*\+\s*(?P<output>\d+)\s*\Z")
_UNNAMED = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME = 63

POOL_FORM = "GPU:NODES@PRICE, such as L40S:8@1.90, 4xL40S:2@7.60 or 8xH100:1@owned"
WORKLOAD_FORM = "REQ_PER_S x INPUT+OUTPUT, such as 3x1155+211"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A model of the draft. source: Hugging Face name or the path of a config.json. max_len:
    tokens, 0 = the default."""

    name: str
    source: str
    max_len: int = 0


@dataclass(frozen=True, slots=True)
class DraftPool:
    """A pool of the draft. usd_per_h: price of one node; None = owned. per_node: GPUs of one node,
    0 = the default."""

    gpu: str
    nodes: int
    usd_per_h: float | None
    per_node: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """The answers. ttft, tpot: durations as written. workload: requests/s and mean tokens of prompt
    and answer, for every model. regions: text of the section `regions:`, in place of pools; "" =
    made of pools. prometheus: address of the Prometheus that scrapes the models' servers; "" =
    none.
    """

    models: tuple[DraftModel, ...]
    pools: tuple[DraftPool, ...]
    ttft: str
    tpot: str
    req_per_s: float
    input_tokens: int
    output_tokens: int
    region: str = "region-1"
    regions: str = ""
    prometheus: str = ""


def parse_model(text: str) -> DraftModel:
    """A model from "SOURCE" or "NAME=SOURCE". InvalidValue: a part is empty."""
    name, given, source = text.strip().partition("=")
    if not given:
        name, source = _short_name(text.strip()), text.strip()
    if not name or not source:
        raise InvalidValue("models", text, "NAME=SOURCE, or a Hugging Face name")
    return DraftModel(name, source)


def merge_servers(servers: Sequence[Sequence[DraftModel]]) -> tuple[DraftModel, ...]:
    """The models of several servers. A model that several servers serve is one model, with the
    shortest of their lengths. Equal names for different sources stay, and are refused on reading.
    """
    found: dict[tuple[str, str], DraftModel] = {}
    for model in (model for server in servers for model in server):
        known = found.setdefault((model.name, model.source), model)
        if 0 < model.max_len < (known.max_len or model.max_len + 1):
            found[model.name, model.source] = model
    return tuple(found.values())


def parse_pool(text: str) -> DraftPool:
    """A pool from text of the form `POOL_FORM`."""
    match = _POOL.match(text)
    if match is None:
        raise InvalidValue("gpus", text, POOL_FORM)
    price = None if match["price"] == "owned" else float(match["price"])
    return DraftPool(match["gpu"], int(match["nodes"]), price, int(match["each"] or 0))


def parse_workload(text: str) -> tuple[float, int, int]:
    """Requests/s, prompt tokens and answer tokens from text of the form `WORKLOAD_FORM`."""
    match = _WORKLOAD.match(text)
    if match is None:
        raise InvalidValue("workload", text, WORKLOAD_FORM)
    return float(match["rate"]), int(match["input"]), int(match["output"])


def parse_limits(text: str) -> tuple[str, str]:
    """TTFT and TPOT limits from "2s 60ms", as written. InvalidValue: not two durations."""
    words = text.replace(",", " ").split()
    if len(words) != 2:
        raise InvalidValue("slo", text, "two durations, such as 2s 60ms")
    for word in words:
        units.named_duration_s("slo", word)
    return words[0], words[1]


def as_yaml(draft: Draft) -> str:
    """The text of the file."""
    lines = [
        "# yaml-language-server: $schema=./shoal.schema.json",
        "# (for editors: shoal config schema > shoal.schema.json)",
        "# Shoal only recommends until this says `mode: act`.",
        "mode: recommend",
        *([f"prometheus: {{main: {_quoted(draft.prometheus)}}}"] if draft.prometheus else []),
        "",
        *_region_lines(draft),
        "",
        "models:",
    ]
    for model in draft.models:
        lines += [
            f"  {model.name}:",
            f"    source: {_quoted(model.source)}",
            f"    slo: {{ttft: {draft.ttft}, tpot: {draft.tpot}}}",
            f"    workload: {{req_per_s: {draft.req_per_s:g}, input: {draft.input_tokens}, "
            f"output: {draft.output_tokens}}}",
        ]
        if model.max_len:
            lines.append(f"    max_len: {model.max_len}")
        if draft.prometheus:
            lines += ["    demand: vllm", *_unmanaged_lines(draft)]
    return "\n".join(lines) + "\n"


def _unmanaged_lines(draft: Draft) -> list[str]:
    """The hardware of the running servers: the first pool, for the user to correct."""
    if not draft.pools:
        return []
    pool = draft.pools[0]
    market = "owned" if pool.usd_per_h is None else "on-demand"
    where = f"{draft.region}/{_short_name(pool.gpu).lower()}/{market}"
    return [f"    unmanaged: {{pool: {where}, gpus: 1}}  # pool and GPUs of one running server"]


def _region_lines(draft: Draft) -> list[str]:
    if draft.regions:
        return draft.regions.splitlines()
    return ["regions:", f"  {draft.region}:", *_pool_lines(draft.pools)]


def _pool_lines(pools: Sequence[DraftPool]) -> list[str]:
    lines, names = [], set[str]()
    for pool in pools:
        name = _unused(_short_name(pool.gpu).lower(), names)
        if pool.usd_per_h is None:
            how = f"owned: true, nodes: {pool.nodes}"
        else:
            how = f"max: {pool.nodes}, price: {pool.usd_per_h:g}"
        each = f"per_node: {pool.per_node}, " if pool.per_node else ""
        lines.append(f"    {name}: {{gpu: {_quoted(pool.gpu)}, {each}{how}}}")
    return lines


def _short_name(source: str) -> str:
    """A valid name from the last part of a source: "Llama-3.1-8B" of "meta-llama/Llama-3.1-8B"."""
    parts = [part for part in source.split("/") if part]
    if len(parts) > 1 and parts[-1].endswith(".json"):
        parts.pop()
    return _UNNAMED.sub("-", parts[-1] if parts else "").strip("-._")[:_MOST_NAME]


def _unused(name: str, names: set[str]) -> str:
    """`name`, or `name` with the first free number; adds it to `names`."""
    unused, number = name, 2
    while unused in names:
        unused, number = f"{name}-{number}", number + 1
    names.add(unused)
    return unused


def _quoted(text: str) -> str:
    """`text` as a YAML scalar."""
    if re.fullmatch(r"[A-Za-z][\w./-]*", text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
