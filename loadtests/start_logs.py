"""How well the memory model predicts the KV cache of public start-ups of vLLM.

Start-ups "fitted" served to choose the factors of the memory
model, or to find a cause. Start-ups "held out" only judge it; a hash of the source divided both.
Start-ups "added later" were found after that, and only judge.
"""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.architecture import from_config
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.engine_overhead import BYTES_PER_LOGIT
from autoscaler.performance.memory import cache_of
from autoscaler.serving.engine_setup import startable_sequences
from loadtests.results.entry import Figures

LOGS = Path(__file__).parent / "data" / "start_logs.json"
_CHECKPOINTS = Path(__file__).parents[1] / "tests" / "data" / "checkpoints" / "facts.json.gz"
_GIB = 2.0**30
GROUPS = FITTED, HELD_OUT, LATER = "fitted", "held out", "added later"
_GRAPHS_SINCE = (0, 21)
"""The version of vLLM that began to keep memory for CUDA graphs free. Earlier ones took it from the
rest."""
_SORTED_UNTIL, _SORTED_BYTES = (0, 17), 38.5
"""The version of vLLM whose sampler no longer sorts the logits (unless FlashInfer did it before),
and the bytes per logit until then, as logs of H100 with four vocabularies state them."""
NEAR = 0.1
"""A prediction within this share of the log is near enough."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start-up: what the log says and what the model predicts.

    measured, predicted: KV cache in tokens, or in GiB per GPU if the log states no tokens; 0 if the
    log states neither. refused: whether the engine refused to start. starts: whether Shoal would
    start it with these arguments. group: one of `GROUPS`.
    """

    source: str
    name: str
    measured: float
    predicted: float
    refused: bool
    starts: bool
    group: str

    @property
    def ratio(self) -> float:
        """Predicted KV cache as a share of the measured one."""
        return self.predicted / self.measured


def start_ups() -> list[Start]:
    """All start-ups of the packaged file with their predictions."""
    with gzip.open(_CHECKPOINTS, "rt", encoding="utf-8") as file:
        checkpoints = json.load(file)["checkpoints"]
    rows = json.loads(LOGS.read_text(encoding="utf-8"))["starts"]
    return [_start(row, checkpoints) for row in rows]


def _start(row: dict, checkpoints: dict) -> Start:  # type: ignore[type-arg]
    spec = _spec(row, checkpoints)
    gpu, tp = catalog.gpu(row["gpu"]), row["tp"]
    cache = cache_of(spec, gpu, tp)
    longest = row.get("max_model_len") or spec.max_position
    starts = cache.sequence_blocks(longest, cache.in_flight) <= cache.blocks
    # Shoal starts no engine with more sequences than it expects to fit.
    starts = starts and startable_sequences(spec, row["gpu"], tp, spec.max_seqs) == spec.max_seqs
    measured, predicted = 0.0, 0.0
    if row.get("kv_tokens"):
        measured, predicted = float(row["kv_tokens"]), cache.reported_tokens(longest)
    elif row.get("kv_gib_per_gpu", 0.0) > 0.0:
        measured = float(row["kv_gib_per_gpu"])
        predicted = cache.blocks * cache.block_bytes / _GIB
    name = f"{row['model']} on {tp}x{row['gpu']}"
    refused = bool(row.get("refused"))
    return Start(row["source"], name, measured, predicted, refused, starts, row["group"])


def _spec(row: dict, checkpoints: dict) -> ModelSpec:  # type: ignore[type-arg]
    name = row["model"]
    try:
        spec = catalog.model(name)
    except InvalidValue:
        spec = from_config(name, checkpoints[name]["config"])
    if "weights" in row:
        spec = catalog.quantized(spec, row["weights"])
    spec = engine_memory(row["args"]).apply_to(spec)
    version = re.match(r"(\d+)\.(\d+)(?:\.|\Z)", row.get("vllm", ""))
    made = (int(version[1]), int(version[2])) if version else _GRAPHS_SINCE
    if made < _SORTED_UNTIL and row.get("sampler") != "flashinfer":
        spec = replace(spec, vocab=round(spec.vocab * _SORTED_BYTES / BYTES_PER_LOGIT))
    return replace(spec, eager=True) if made < _GRAPHS_SINCE else spec


def measure(seed: int) -> Figures:
    """Counts and errors of the start-ups that chose no factor."""
    del seed
    found = [one for one in start_ups() if one.group != FITTED]
    ran = [one for one in found if one.measured and not one.refused]
    refused = [one for one in found if one.refused]
    return {
        "ran": len(ran),
        "near": sum(abs(one.ratio - 1.0) <= NEAR for one in ran),
        "mean_error": fmean(abs(one.ratio - 1.0) for one in ran),
        "refused": len(refused),
        "refused_predicted_to_start": sum(one.starts for one in refused),
    }
