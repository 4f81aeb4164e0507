"""Cases of the sizing benchmark: engines with their SLOs, and requests to draw from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import LEVELS, Lengths

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# model, quantization, GPU type, number of GPUs, TTFT ms, TPOT ms
ENGINES = (
    ("openai/gpt-oss-20b", None, "L4", 1, 1000.0, 50.0),
    ("openai/gpt-oss-20b", None, "L4", 1, 4000.0, 80.0),
    ("openai/gpt-oss-20b", None, "L40S", 1, 1000.0, 50.0),
    ("meta-llama/Llama-3.1-8B", None, "L4", 1, 3000.0, 100.0),
    ("meta-llama/Llama-3.1-8B", None, "A100", 1, 1000.0, 30.0),
    ("meta-llama/Llama-3.1-8B", None, "H100", 1, 500.0, 20.0),
    ("Qwen/Qwen3-32B", "fp8", "L40S", 1, 2000.0, 80.0),
    ("Qwen/Qwen3-32B", "fp8", "L40S", 2, 2000.0, 80.0),
    ("meta-llama/Llama-3.3-70B-Instruct", "fp8", "L40S", 4, 2000.0, 60.0),
    ("meta-llama/Llama-3.3-70B-Instruct", "fp8", "H100", 4, 2000.0, 60.0),
)
# name, mean input, mean output, standard deviation over mean; the last has long prompts (p95 7,300)
_DRAWN = (
    ("fixed", 1155.0, 211.0, 0.0),
    ("chat", 1155.0, 211.0, 1.0),
    ("short", 400.0, 120.0, 0.7),
    ("long", 2000.0, 250.0, 1.6),
)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests to draw from: (input, output) pairs, (n,) each, drawn with replacement."""

    name: str
    inputs: Ints
    outputs: Ints

    def lengths(self) -> Lengths:
        """Means and quantiles, in the form that telemetry has."""
        if len(set(self.inputs)) == len(set(self.outputs)) == 1:
            return Lengths(float(self.inputs[0]), float(self.outputs[0]))
        return Lengths(
            float(self.inputs.mean()),
            float(self.outputs.mean()),
            tuple(np.maximum(1.0, np.quantile(self.inputs, LEVELS)).tolist()),
            tuple(np.maximum(1.0, np.quantile(self.outputs, LEVELS)).tolist()),
        )


def drawn_traffic() -> Iterator[Traffic]:
    """Two traffics: one with lognormal lengths and one with fixed lengths."""
    random = np.random.default_rng(7)
    for name, mean_in, mean_out, cv in _DRAWN:
        sigma = np.sqrt(np.log1p(cv * cv))
        pairs = [
            np.maximum(
                1, np.rint(mean * np.exp(sigma * random.standard_normal(20_000) - sigma**2 / 2))
            )
            for mean in (mean_in, mean_out)
        ]
        yield Traffic(name, pairs[0].astype(np.int64), pairs[1].astype(np.int64))


def draw(traffic: Traffic, count: int, seed: int) -> tuple[Floats, Ints, Ints]:
    """Draw `count` arrivals at a mean rate of 1 per ms, with input and output tokens."""
    random = np.random.default_rng(seed)
    at = random.integers(0, len(traffic.inputs), count)
    gaps = random.exponential(1.0, count)
    return np.cumsum(gaps), traffic.inputs[at], traffic.outputs[at]
