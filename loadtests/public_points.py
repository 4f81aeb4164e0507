"""How well the performance model predicts public benchmarks, by chip and weight format.

Points of a model in `FITTED` served to choose factors of
that chip; the others only judge them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import ceil, floor
from pathlib import Path
from statistics import fmean

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance import catalog
from autoscaler.performance.architecture import from_config
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.calibration import with_benchmark_kernels
from autoscaler.performance.closed_loop import estimate_point
from autoscaler.performance.intervals import interval_of, intervals_on, packaged_intervals
from autoscaler.performance.memory import cache_of
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.plausibility import peak_share, waits_for_slots
from loadtests.results.entry import Figures
from streams.files.profile_files import write_profile

_MODELS = Path(__file__).parent / "data" / "public_models.json"
POINTS = Path(__file__).parent / "data" / "public_points.csv"
_DEEPSEEK, _GPT_OSS = "deepseek-ai/DeepSeek-R1", "openai/gpt-oss-120b"
FITTED = {
    "MI300X": (_DEEPSEEK,), "MI325X": (_DEEPSEEK,), "MI355X": (_DEEPSEEK,),
    "B200-SXM": (_DEEPSEEK, _GPT_OSS), "B300-SXM": (_DEEPSEEK,),
    "H200-SXM": (_DEEPSEEK, _GPT_OSS), "H100-SXM": (_GPT_OSS,),
}  # fmt: skip
"""Models with points that chose factors, by GPU: on the GPU itself, or on one with its chip."""
FAMILIES = (
    (("B200-SXM", "B300-SXM", "GB200", "GB300"), True),
    (("MI300X", "MI325X", "MI350X", "MI355X"), False),
)
"""GPUs that share intervals, and whether their kernels were timed."""
_SAME_SIZES = {"Qwen/Qwen3Guard-Gen-8B": "Qwen/Qwen3-8B"}


@dataclass(frozen=True, slots=True)
class PublicPoint:
    """A public measurement with its prediction. source: its address."""

    source: str
    measured: MeasuredPoint
    ttft_ms: float
    tpot_ms: float

    @property
    def held_out(self) -> bool:
        """Whether no point of this model chose factors of this chip."""
        return not _is_fitted(self.measured)

    @property
    def group(self) -> tuple[str, str, bool]:
        """The chip, the weight format, and whether the model was held out."""
        return self.measured.gpu.name, self.measured.spec.weight_dtype, self.held_out


def _is_fitted(point: MeasuredPoint) -> bool:
    return point.model in FITTED.get(point.gpu.name, ())


def read_points() -> list[tuple[str, MeasuredPoint]]:
    """The comparable points of the packaged file, with their sources."""
    with POINTS.open(encoding="utf-8") as file:
        found = [(row["source"], _point(row)) for row in csv.DictReader(file)]
    return [(source, point) for source, point in found if _comparable(point)]


def _comparable(point: MeasuredPoint) -> bool:
    """Whether all requests ran at once, as far as the measurement and vLLM's default share of the
    memory tell; the sources do not state the server's limits."""
    context = point.input_tokens + 0.5 * point.output_tokens
    room = cache_of(point.spec, point.gpu, point.tp).sequences_at(context)
    return peak_share(point) <= 1.0 and not waits_for_slots(point) and room >= point.load


def predicted() -> list[PublicPoint]:
    """Every comparable point with the prediction of the packaged profile."""
    made = [(s, p, estimate_point(p, default_profile())) for s, p in read_points()]
    return [PublicPoint(s, p, e.ttft_ms, e.tpot_ms) for s, p, e in made]


def _point(row: dict[str, str]) -> MeasuredPoint:
    gpu, tp = catalog.gpu(row["gpu"]), int(row["tp"])
    return MeasuredPoint(
        row["model"], row["gpu"], _spec(row["model"], row["weights"]), gpu, PointKind.CLOSED_LOOP,
        row["engine"], tp, tp, float(row["input_tokens"]), float(row["output_tokens"]),
        float(row["concurrency"]), 0.0, float(row["ttft_ms"]) if row["ttft_ms"] else None,
        float(row["tpot_ms"]),
    )  # fmt: skip


def _spec(name: str, weights: str) -> ModelSpec:
    spec = _specs().get(name) or catalog.model(_SAME_SIZES.get(name, name))
    if spec.weight_dtype != weights:
        spec = catalog.quantized(spec, weights)
    return catalog.with_kv_cache(spec, "fp8") if weights in ("fp8", "fp4") else spec


@lru_cache(maxsize=1)
def _specs() -> dict[str, ModelSpec]:
    """Models that the catalogue lacks."""
    configs = json.loads(_MODELS.read_text(encoding="utf-8"))["configs"]
    return {name: from_config(name, config) for name, config in configs.items()}


def errors(found: Iterable[PublicPoint]) -> tuple[float, float | None]:
    """Mean absolute errors of TPOT and TTFT, relative to the measurements."""
    listed = list(found)
    first = [
        abs(one.ttft_ms / one.measured.ttft_ms - 1.0) for one in listed if one.measured.ttft_ms
    ]
    later = [abs(one.tpot_ms / (one.measured.tpot_ms or 1.0) - 1.0) for one in listed]
    return fmean(later), fmean(first) if first else None


def inside(found: Iterable[PublicPoint], figure: str) -> float | None:
    """Share of the points with this figure ("TTFT" or "TPOT") that are within its interval."""
    within = []
    for one in found:
        measured = one.measured.ttft_ms if figure == "TTFT" else one.measured.tpot_ms
        guess = one.ttft_ms if figure == "TTFT" else one.tpot_ms
        if measured is not None:
            interval = interval_of(figure, one.measured.spec, one.measured.gpu.name)
            within.append(interval.low <= measured / guess <= interval.high)
    return fmean(within) if within else None


def chip_intervals() -> list[dict[str, object]]:
    """Intervals of each family of chips, in the form of the packaged file.

    A family without timed passes has its own. The others widen that of their class as far as
    their points require.
    """
    pairs = [(p, estimate_point(p, default_profile())) for _, p in read_points()]
    new = [pair for pair in pairs if not _is_fitted(pair[0])]
    found = []
    for gpus, timed in FAMILIES:
        own = [pair for pair in pairs if pair[0].gpu.name in gpus]
        for row in intervals_on(own, [pair for pair in new if pair[0].gpu.name in gpus]):
            if timed:
                general = next(
                    one
                    for one in packaged_intervals()
                    if (one.kind, one.figure) == (row.kind, row.figure) and not one.gpus
                )
                low, high = min(row.low, general.low), max(row.high, general.high)
                if (low, high) == (general.low, general.high):
                    continue
                row = replace(row, low=low, high=high)
            # Rounding must not exclude the points that widened an interval.
            low, high = floor(row.low * 1e3) / 1e3, ceil(row.high * 1e3) / 1e3
            figures = {"low": low, "high": high, "covered": round(row.covered, 3)}
            found.append({**asdict(row), **figures, "gpus": list(gpus)})
    return found


def measure(seed: int) -> Figures:
    """Errors of the points whose models chose no factor of the chip."""
    del seed
    groups: dict[str, list[PublicPoint]] = defaultdict(list)
    for one in predicted():
        if one.held_out:
            groups[f"{one.measured.gpu.name}, {one.measured.spec.weight_dtype}"].append(one)
    found: Figures = {}
    for name, own in sorted(groups.items()):
        tpot, ttft = errors(own)
        models = sorted({one.measured.model.rpartition("/")[2] for one in own})
        found[name] = {"models": ", ".join(models), "points": len(own), "tpot": tpot}
        found[name] |= {"ttft": ttft} if ttft is not None else {}
    return found


def main(argv: list[str] | None = None) -> None:
    """Write the profile or print the intervals."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--fit", type=Path, metavar="PROFILE.json",
        help="write the packaged profile with kernels of GPUs that only benchmarks measure",
    )  # fmt: skip
    parser.add_argument(
        "--intervals", action="store_true", help="print the intervals of each family of chips"
    )
    options = parser.parse_args(argv)
    if options.intervals:
        print(json.dumps(chip_intervals(), indent=1))
        return
    if options.fit:
        fitted = [p for _, p in read_points() if _is_fitted(p)]
        write_profile(options.fit, with_benchmark_kernels(default_profile(), fitted))
        return
    parser.error("name --fit or --intervals; `make results ARGS=public-points` has the errors")


if __name__ == "__main__":
    main()
