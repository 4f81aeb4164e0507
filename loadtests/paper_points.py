"""The throughputs of Llama-3-70B that two papers print, against the performance model.

No factor was fitted to them. As requests/s the printed figures contradict the data sheets: 0.56
req/s on eight H100s uses 2.5% of their peak. So there are three readings. "printed": the figure is
in requests/s. "per USD/h": it is divided by the price of the GPUs, as in figures 3 and 4 of
Demystifying. "scaled": all figures of the table have one unknown factor, which is the geometric
mean of prediction / measurement. BOute names no GPU: two of its types hold the model on two GPUs,
and both are tried. The model has one bandwidth between pipeline stages, so "two machines" predicts
the same as one.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.pipeline import PipelineSlices
from autoscaler.performance.throughput import max_req_per_s
from autoscaler.planning.pipelines import split_evenly
from loadtests.results.entry import Figures

POINTS = Path(__file__).parent / "data" / "paper_points.csv"
_MODEL = "meta-llama/Llama-3.3-70B-Instruct"
_UNNAMED = "?"
_CANDIDATES = ("H100", "RTX PRO 6000")
_LONGEST_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class PaperPoint:
    """A configuration of a paper. table: with the assumed GPU, if the paper names none. measured,
    estimated: the printed figures. predicted_req_per_s: by the packaged profile. usd_per_h: price
    of the GPUs; 0 if the paper has none."""

    table: str
    configuration: str
    measured: float
    estimated: float
    predicted_req_per_s: float
    usd_per_h: float

    @property
    def papers_error(self) -> float:
        """Error of the paper's estimate, relative to its measurement."""
        return self.estimated / self.measured - 1.0


def paper_points() -> list[PaperPoint]:
    """All configurations; those without a GPU's name once for each candidate."""
    with POINTS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = [_point(row, row["paper"], row["gpus"]) for row in rows if _UNNAMED not in row["gpus"]]
    for gpu in _CANDIDATES:
        found += [
            _point(row, f"{row['paper']}, if {gpu}", row["gpus"].replace(_UNNAMED, gpu))
            for row in rows
            if _UNNAMED in row["gpus"]
        ]
    return found


def _point(row: dict[str, str], table: str, gpus: str) -> PaperPoint:
    model = catalog.model(_MODEL)
    slices = [NodeSlice(catalog.gpu(name), int(row["tp"])) for name in gpus.split(";")]
    layers = split_evenly(model.layers, len(slices))
    stages = tuple(zip(slices, layers, strict=True))
    node = PipelineSlices(stages, _LONGEST_TOKENS) if len(stages) > 1 else slices[0]
    lengths = Lengths(float(row["input_tokens"]), float(row["output_tokens"]))
    rate = max_req_per_s(model, node, Phase.AGGREGATED, lengths, default_profile())
    return PaperPoint(
        table,
        row["configuration"],
        float(row["measured"]),
        float(row["estimated"]),
        int(row["dp"]) * rate,
        float(row["usd_per_h"] or 0.0),
    )


def errors(points: list[PaperPoint]) -> dict[str, list[float]]:
    """Relative errors of the predictions by reading; "paper": of the paper's own estimates."""
    ratios = [one.predicted_req_per_s / one.measured for one in points]
    factor = geometric_mean(ratios)
    found = {
        "paper": [one.papers_error for one in points],
        "printed": [ratio - 1.0 for ratio in ratios],
        "scaled": [ratio / factor - 1.0 for ratio in ratios],
    }
    if all(one.usd_per_h for one in points):
        found["per USD/h"] = [
            ratio / one.usd_per_h - 1.0 for ratio, one in zip(ratios, points, strict=True)
        ]
    return found


def measure(seed: int) -> Figures:
    """By table: points, and the mean and the worst absolute error of each reading; then the
    predictions and the errors of its configurations."""
    del seed
    points, found = paper_points(), Figures()
    for table in dict.fromkeys(one.table for one in points):
        own = [one for one in points if one.table == table]
        by_reading = errors(own)
        found[table] = {
            name: {"mean": fmean(map(abs, each)), "worst": max(map(abs, each))}
            for name, each in by_reading.items()
        }
        found[table] |= {"points": len(own)}
        for at, one in enumerate(own):
            shown: Figures = {name: each[at] for name, each in by_reading.items()}
            shown |= {"measured": one.measured, "predicted_req_per_s": one.predicted_req_per_s}
            found[table][one.configuration] = shown
    return found
