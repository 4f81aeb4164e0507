"""Coral's models, nodes, prices and demand (Table 3, sec. 6.1), and their allocation instances.

The two setups are the paper's. Values that the paper does not print are assumptions. Mean lengths
of the datasets are 1155/211 (Azure conversation), 2048/28 (Azure code) and 621/235 tokens
(BurstGPT). Prices are AWS on-demand prices of the smallest instance of 1, 2, 4 or 8 GPUs. A size
that AWS does not sell costs half or a quarter of a larger size. The other regions cost 10 and 20%
more than the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.result import SolveOptions
from autoscaler.performance import catalog
from autoscaler.performance.profile import Profile
from autoscaler.templates.build_library import build_library
from autoscaler.templates.engine_filter import CORAL
from autoscaler.templates.library_request import LibraryRequest
from autoscaler.templates.throughput_table import throughput_table
from loadtests.template_problem import TemplateProblem, can_be_served, solve_templates

CONVERSATION, CODE, BURST = (1155, 211), (2048, 28), (621, 235)


@dataclass(frozen=True, slots=True)
class Model:
    """One row of Table 3: SLOs in ms, and the mean lengths of its dataset."""

    name: str
    source: str
    prefill_ms: float
    decode_ms: float
    lengths: tuple[int, int]


MODELS = (
    Model("phi4-14b", "microsoft/phi-4", 1200, 60, CONVERSATION),
    Model("gpt-oss-20b", "openai/gpt-oss-20b", 900, 30, CODE),
    Model("qwen3-32b", "Qwen/Qwen3-32B", 1600, 100, BURST),
    Model("llama3-70b", "meta-llama/Llama-3.3-70B-Instruct", 1500, 80, BURST),
    Model("gpt-oss-120b", "openai/gpt-oss-120b", 1000, 40, CONVERSATION),
    Model("qwen3-235b", "Qwen/Qwen3-235B-A22B", 1800, 120, CODE),
)
PRICES = {
    "L40S": {1: 1.861, 2: 5.2463, 4: 10.4926, 8: 30.1312},
    "L4": {1: 0.8048, 2: 2.3008, 4: 4.6016, 8: 13.3504},
    "A10G": {1: 1.006, 2: 2.836, 4: 5.672, 8: 16.288},
    "H100": {1: 6.88, 2: 13.76, 4: 27.52, 8: 55.04},
    "A100": {1: 3.4309, 2: 6.8618, 4: 13.7236, 8: 27.4471},
}
REGIONS = {"us-east-2": 1.0, "ap-northeast-2": 1.2, "us-central-1": 1.1}


@dataclass(frozen=True, slots=True)
class Node:
    """A node configuration and its price in the first region."""

    gpu: GpuSpec
    gpus: int
    usd_per_h: float


@dataclass(frozen=True, slots=True)
class Setup:
    """A setup of sec. 6.1. slack: available nodes relative to needed nodes, if nodes are scarce
    (sec. 6.4).

    heavy: models that get 80% of the requests under uneven demand (sec. 6.5).
    """

    name: str
    models: tuple[Model, ...]
    nodes: tuple[Node, ...]
    regions: tuple[str, ...]
    req_per_s: float
    slack: float
    heavy: Mapping[str, tuple[str, ...]]

    @property
    def usd_per_h(self) -> Floats:
        """Prices, (regions, configurations)."""
        factors = np.array([REGIONS[region] for region in self.regions])
        each = np.array([node.usd_per_h for node in self.nodes])
        return np.asarray(np.outer(factors, each))

    def req_per_s_of(self, mix: str) -> dict[str, float]:
        """Requests/s per model: equal shares, or 80% for the heavy models."""
        total = self.req_per_s * len(self.models)
        heavy = self.heavy.get(mix, ())
        if not heavy:
            return {m.name: self.req_per_s for m in self.models}
        light = 0.2 * total / (len(self.models) - len(heavy))
        return {m.name: 0.8 * total / len(heavy) if m.name in heavy else light for m in self.models}


def _nodes(*gpus: str) -> tuple[Node, ...]:
    return tuple(Node(catalog.gpu(gpu), n, usd) for gpu in gpus for n, usd in PRICES[gpu].items())


SETUPS = {
    "core": Setup(
        "core", MODELS[:3], _nodes("L40S", "L4", "A10G"), ("us-east-2", "ap-northeast-2"), 10.0,
        1.25, {"large-heavy": ("qwen3-32b",), "small-heavy": ("phi4-14b",)},
    ),
    "extended": Setup(
        "extended", MODELS, _nodes(*PRICES), tuple(REGIONS), 25.0, 1.75,
        {"large-heavy": ("qwen3-235b", "gpt-oss-120b"),
         "small-heavy": ("phi4-14b", "gpt-oss-20b")},
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Libraries:
    """Prefill and decode templates of each model: node counts and requests/s."""

    nodes: tuple[Ints, ...]
    req_per_s: tuple[Floats, ...]


def libraries(setup: Setup, profile: Profile) -> Libraries:
    """Coral's full library (sec. 4.2).

    It has any nodes and data-parallel stages, and reserves no capacity for queueing.
    """
    slices = tuple(NodeSlice(node.gpu, node.gpus) for node in setup.nodes)
    nodes, rates = [], []
    for model in setup.models:
        for phase in (Phase.PREFILL, Phase.DECODE):
            request = LibraryRequest(
                catalog.model(model.source), phase, Slo(model.prefill_ms, model.decode_ms),
                Lengths(*model.lengths), slices, CORAL, profile.content_hash, utilisation=0.0,
            )  # fmt: skip
            library = build_library(request, throughput_table(request, profile))
            nodes.append(library.node_counts.astype(np.int64))
            rates.append(library.throughput_req_per_s)
    return Libraries(tuple(nodes), tuple(rates))


def instance(setup: Setup, made: Libraries, mix: str, available: Ints | int) -> TemplateProblem:
    """Return the allocation instance: groups in the order of `libraries`, without start
    penalties."""
    usd_per_h = setup.usd_per_h
    demand = [rate for rate in setup.req_per_s_of(mix).values() for _ in range(2)]
    return TemplateProblem(
        usd_per_h, np.broadcast_to(np.asarray(available, np.int64), usd_per_h.shape),
        np.array(demand), made.nodes, made.req_per_s, 0.0,
    )  # fmt: skip


def pairs(setup: Setup) -> list[tuple[int, int]]:
    """(prefill group, decode group) of each model."""
    return [(2 * i, 2 * i + 1) for i in range(len(setup.models))]


def ours(problem: TemplateProblem, gap: float) -> Ints:
    """Our plan within `gap` of the cheapest.

    The search has no time limit, so equal problems give equal plans.
    """
    return solve_templates(problem, SolveOptions(gap=gap)).rows


def feasible(problem: TemplateProblem) -> bool:
    """Whether a plan exists that serves all of the demand."""
    return can_be_served(problem)
