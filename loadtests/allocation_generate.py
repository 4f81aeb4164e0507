"""Generate allocation instances in the form that the checker and the benchmark read.

usage: python -m loadtests.allocation_generate --models M --regions R --configs C --seed S
       --out FILE [--scarcity X] [--templates N]

The seed draws a plausible world. GPU types have published memory, compute and bandwidth. Prices per
GPU have a factor for size and region. Models have lognormal sizes. Templates are multisets of nodes
with memory for up to 12 copies of the model. A template's throughput grows faster than the sum of
its parts while memory is short, and falls if its pipeline is uneven. With --scarcity X the
available nodes cost about X times as much as an unconstrained fleet for the demand. Without it no
node is scarce. Templates and their throughputs are drawn at random, not computed by a placement, so
results hold only for such worlds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.optimizer.array_types import Floats, Ints

# Memory (GiB), dense bf16 TFLOPS, bandwidth (GB/s), price of one GPU (USD/h, rounded).
KINDS: dict[str, tuple[float, float, float, float]] = {
    "L40S": (48, 181, 864, 2.2),
    "L4": (24, 60, 300, 1.0),
    "A10G": (24, 35, 600, 1.2),
    "H100": (80, 989, 3350, 8.0),
    "A100": (80, 312, 2039, 3.8),
    "H200": (141, 989, 4800, 9.5),
    "B200": (180, 2250, 8000, 14.0),
    "V100": (32, 125, 900, 2.3),
    "T4": (16, 65, 320, 0.6),
    "MI300X": (192, 1307, 5300, 7.5),
}
SIZES = (1, 2, 4, 8)
NODES_MOST = 6
MEMORY_MOST = 12.0
LOOSE = 2.6
"""Cost of the available nodes at scarcity 1, relative to the least conceivable
cost of the demand.
"""


@dataclass(frozen=True, slots=True)
class World:
    """Node configurations as arrays over C: names, memory, compute, bandwidth, list price."""

    names: list[str]
    memory_gib: Floats
    tflops: Floats
    gb_s: Floats
    usd_per_h: Floats


def world(configs: int) -> World:
    """The first `configs` combinations of GPU type and node size.

    Mixtures of two types follow the real types.
    """
    names: list[str] = []
    rows: list[list[float]] = []
    kinds = list(KINDS.items())
    while len(names) < configs:
        index = len(names) // len(SIZES)
        name, facts = kinds[index % len(kinds)]
        if index >= len(kinds):
            other = kinds[(7 * index + 3) % len(kinds)][1]
            mixed = [(a + b) / 2 for a, b in zip(facts, other, strict=True)]
            facts = (mixed[0], mixed[1], mixed[2], mixed[3])
            name = f"{name}x{index // len(kinds)}"
        gpus = SIZES[len(names) % len(SIZES)]
        names.append(f"{name}:{gpus}")
        rows.append([gpus * f for f in facts[:3]] + [facts[3] * gpus * 1.03 ** np.log2(gpus)])
    table = np.array(rows, dtype=np.float64).T
    return World(names, table[0], table[1], table[2], table[3])


def templates(
    generator: np.random.Generator, here: World, size_gib: float, prefill: bool, most: int
) -> tuple[Ints, Floats]:
    """Node counts (n, C) uint8 and relative throughputs (n,) of the templates for one model and
    phase."""
    configs = len(here.names)
    singles = np.eye(configs, dtype=np.uint8)
    a, b = np.triu_indices(configs)
    parts = [singles, singles[a] + singles[b]]
    for nodes, share in ((3, 0.03), (4, 0.12), (5, 0.3), (6, 0.55)):
        count = int(1.6 * most * share) + 1
        # Few distinct configurations per template, because pipelines of equal nodes are balanced
        # best.
        distinct = generator.integers(1, 5, count)
        palette = generator.integers(0, configs, (count, 4))
        pick = generator.integers(0, 1 << 30, (count, nodes)) % distinct[:, None]
        chosen = np.take_along_axis(palette, pick, axis=1)
        sets = np.zeros((count, configs), dtype=np.uint8)
        np.add.at(sets, (np.repeat(np.arange(count), nodes), chosen.ravel()), 1)
        parts.append(sets)
    nodes_of = np.unique(np.vstack(parts), axis=0)
    memory = nodes_of @ here.memory_gib
    nodes_of = nodes_of[(memory >= 1.15 * size_gib) & (memory <= MEMORY_MOST * size_gib)]
    if not len(nodes_of):
        largest = int(np.argmax(here.memory_gib))
        nodes_of = np.zeros((1, configs), dtype=np.uint8)
        nodes_of[0, largest] = NODES_MOST
    rate = _rate(generator, here, nodes_of, size_gib, prefill)
    alone = _rate(None, here, singles, size_gib, prefill)
    alone[here.memory_gib < 1.15 * size_gib] = 0.0
    apart = nodes_of @ alone
    worth = (nodes_of.sum(axis=1) == 1) | (rate > apart * 1.0001)
    nodes_of, rate = nodes_of[worth], rate[worth]
    if len(rate) > most:
        few = nodes_of.sum(axis=1) <= 2
        rest = generator.permutation(np.flatnonzero(~few))[: max(0, most - int(few.sum()))]
        keep = np.sort(np.concatenate([np.flatnonzero(few), rest]))
        nodes_of, rate = nodes_of[keep], rate[keep]
    return nodes_of, rate


def _rate(
    generator: np.random.Generator | None,
    here: World,
    nodes_of: Ints,
    size_gib: float,
    prefill: bool,
) -> Floats:
    memory = nodes_of @ here.memory_gib
    room = np.clip(1.0 - size_gib / np.maximum(memory, 1e-9), 0.02, 1.0)
    if prefill:
        power = nodes_of @ here.tflops * room / size_gib
    else:
        power = nodes_of @ here.gb_s * room**2.5 / size_gib
    kinds = (nodes_of > 0).sum(axis=1)
    stages = nodes_of.sum(axis=1)
    balance = 0.97 ** (stages - 1) * 0.96 ** (kinds - 1)
    noise = 1.0 if generator is None else generator.uniform(0.92, 1.0, len(nodes_of))
    return np.asarray(power * balance * np.where(stages == 1, 1.0, noise))


def generate(
    models: int, regions: int, configs: int, seed: int, scarcity: float | None, most: int
) -> dict[str, Any]:
    """The arrays of one instance, by their names in the file."""
    generator = np.random.default_rng(seed)
    here = world(configs)
    factor = generator.uniform(0.92, 1.25, (regions, 1))
    price = here.usd_per_h * factor * generator.uniform(0.93, 1.07, (regions, configs))
    sizes = np.clip(generator.lognormal(4.4, 0.9, models), 6.0, 0.4 * NODES_MOST * 300.0)
    out: dict[str, Any] = {"configs": np.array(here.names), "price_usd_per_h": price}
    demand: list[float] = []
    owner: list[str] = []
    phase: list[str] = []
    loose = 0.0
    for m in range(models):
        count = int(np.clip(most * generator.lognormal(-0.4, 0.9), 50, 4 * most))
        wanted_usd_per_h = generator.uniform(5.0, 120.0)
        for is_prefill in (True, False):
            nodes, rate = templates(generator, here, float(sizes[m]), is_prefill, count)
            cost = (nodes @ price.T).min(axis=1)
            cheapest = float((cost / rate).min())
            # Both phases have the same demand in requests/s. Rates are scaled to the wanted cost.
            requests = float(generator.uniform(20.0, 70.0))
            requests = demand[-1] if not is_prefill else requests
            spent = wanted_usd_per_h if is_prefill else wanted_usd_per_h * generator.uniform(0.1, 1)
            loose += spent
            k = len(demand)
            out[f"nodes_{k}"] = nodes
            out[f"throughput_{k}"] = rate * (cheapest * requests / spent)
            demand.append(requests)
            owner.append(f"model-{m}")
            phase.append("prefill" if is_prefill else "decode")
    available = np.full((regions, configs), 10_000, dtype=np.int32)
    if scarcity is not None:
        weight = generator.lognormal(0.0, 0.7, (regions, configs)) / np.sqrt(here.usd_per_h)
        nodes_worth = LOOSE * scarcity * loose / float((weight * price).sum())
        available = np.floor(weight * nodes_worth + generator.random(weight.shape))
        available = available.astype(np.int32)
    out |= {
        "available_nodes": available,
        "demand_req_per_s": np.array(demand),
        "group_model": np.array(owner),
        "group_phase": np.array(phase),
        "K": np.array(0.1),
    }
    return out


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 the file was written, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.allocation_generate")
    for name in ("--models", "--regions", "--configs"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scarcity", type=float, help="1.25 scarce, 0.75 very scarce; none: ample")
    parser.add_argument("--templates", type=int, default=12_000, help="per group, about")
    args = parser.parse_args(argv)
    try:
        arrays = generate(
            whole("--models", args.models, 1, 1000),
            whole("--regions", args.regions, 1, 100),
            whole("--configs", args.configs, 1, 200),
            whole("--seed", args.seed, 0, 2**32),
            None if args.scarcity is None else finite("--scarcity", args.scarcity, 0.01, 100.0),
            whole("--templates", args.templates, 1, 1_000_000),
        )
        np.savez_compressed(args.out, **arrays)
    except (InvalidValue, OSError) as error:
        print(f"allocation_generate: {error}", file=sys.stderr)
        return 2
    groups = 2 * args.models
    total = sum(len(arrays[f"throughput_{k}"]) for k in range(groups))
    print(f"{args.out}: {groups} groups, {total} templates, {args.regions} x {args.configs} pools")
    return 0


if __name__ == "__main__":
    sys.exit(main())
