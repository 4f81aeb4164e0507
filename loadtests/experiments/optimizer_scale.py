"""The optimizer on generated allocation instances of the papers' size, and beyond it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from autoscaler.optimizer.decomposition.compile_kernels import compile_kernels
from autoscaler.optimizer.result import SolveOptions
from loadtests.allocation_files import instance_of
from loadtests.allocation_generate import generate
from loadtests.results.entry import Figures
from loadtests.template_problem import solve_templates


@dataclass(frozen=True, slots=True)
class Size:
    """A generated instance (see `allocation_generate`). gap: the solver stops at this proof."""

    name: str
    models: int
    regions: int
    configs: int
    scarcity: float | None
    templates: int
    gap: float


SIZES = (
    Size("6 models, ample nodes", 6, 3, 20, None, 12_000, 0.001),
    Size("6 models, scarce nodes", 6, 3, 20, 1.25, 12_000, 0.005),
    Size("6 models, very scarce nodes", 6, 3, 20, 0.75, 12_000, 0.015),
    Size("100 models, scarce nodes", 100, 10, 40, 1.25, 3_000, 0.03),
)


def measure(seed: int) -> Figures:
    """The proven gap and the CPU seconds of each instance."""
    compile_kernels()
    return {size.name: _solved(size, seed) for size in SIZES}


def _solved(size: Size, seed: int) -> Figures:
    arrays = generate(size.models, size.regions, size.configs, seed, size.scarcity, size.templates)
    problem = instance_of(arrays)
    begin = time.process_time()
    done = solve_templates(problem, SolveOptions(gap=size.gap)).result
    cpu_s = time.process_time() - begin
    return {
        "columns": problem.columns,
        "asked": size.gap,
        "gap": done.gap,
        "served": float(done.served_fraction.min()),
        "cpu_s": cpu_s,
    }
