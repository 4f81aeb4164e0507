"""Cornserve, sec. 4: cells, mixtures and deployment options for Qwen 2.5 Omni 7B on A100s.

    python -m loadtests.experiments.cornserve [--json OUT]

Component rates are the paper's Table 1 (one A100-80GB each). The paper does not print its profiles
of shared deployments. Here a shared instance takes `overhead` times as long as its components
alone. Several overheads are shown, because the best choice depends on them. Mixes range from only
text to image-heavy and spoken requests. For each mix it prints requests/s on 8 GPUs: with all
components in one deployment, with each component in its own, and by the plan. It also prints
Algorithm 1's cells. For a range of rates it prints the GPUs of Algorithm 2's mixture and of the
exact mixture.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.validation import InvalidValue
from autoscaler.modes.components.component_cells import Cell, efficient_cells
from autoscaler.modes.components.component_graph import ComponentGraph, Deployment, RequestType
from autoscaler.modes.components.component_program import component_problem, most_for_budget
from autoscaler.performance import catalog
from loadtests.experiments.cell_mixtures import fewest_gpus, greedy_mixture

GPU = catalog.gpu("A100")
# Table 1: requests/s of each component on one A100-80GB
TABLE_1 = {"image": 15.64, "video": 1.28, "audio": 34.04, "llm": 1.09, "speech": 0.28}
AFTER = {
    "image": frozenset[str](),
    "video": frozenset[str](),
    "audio": frozenset[str](),
    "llm": frozenset({"image", "video", "audio"}),
    "speech": frozenset({"llm"}),
}
MIXES: dict[str, dict[str, tuple[float, tuple[str, ...]]]] = {
    "text only": {"text": (1.0, ("llm",))},
    "a fifth images": {"text": (0.8, ("llm",)), "image": (0.2, ("image", "llm"))},
    "image-heavy": {"text": (0.2, ("llm",)), "image": (0.8, ("image", "llm"))},
    "video": {"text": (0.5, ("llm",)), "video": (0.5, ("video", "llm"))},
    "spoken": {
        "text": (0.4, ("llm",)),
        "voice": (0.3, ("audio", "llm", "speech")),
        "image": (0.3, ("image", "llm")),
    },
}
OVERHEADS = (1.0, 1.2, 1.5)


def graph(mix: dict[str, tuple[float, tuple[str, ...]]], overhead: float) -> ComponentGraph:
    """Return a model that can deploy each component alone, each encoder with the LLM, or all
    together."""
    types = tuple(RequestType(n, share, frozenset(uses)) for n, (share, uses) in mix.items())
    used = {c for kind in types for c in kind.uses}
    groups = [(c,) for c in AFTER if c in used]
    groups += [(c, "llm") for c in ("image", "video", "audio") if c in used]
    if len(used) > 2:
        groups.append(tuple(c for c in AFTER if c in used))
    return ComponentGraph(
        "omni", AFTER, types, tuple(_option(g, types, overhead) for g in groups), 1
    )


def _option(group: tuple[str, ...], types: tuple[RequestType, ...], overhead: float) -> Deployment:
    """A deployment of the components `group`. As in Algorithm 3, its rate is the inverse of the
    mean seconds per request over the mix."""
    seconds = sum(kind.share / TABLE_1[c] for kind in types for c in group if c in kind.uses)
    factor = overhead if len(group) > 1 else 1.0
    return Deployment("+".join(group), frozenset(group), 1, {GPU.name: 1.0 / (factor * seconds)})


def best_rate(model: ComponentGraph, gpus: int) -> float:
    """Requests/s on `gpus` GPUs; 0 if the model does not fit."""
    pool = Pool("cell", "a100", GPU, 1, gpus, Market.ON_DEMAND, 1.0)
    try:
        return most_for_budget(component_problem((model,), (pool,), math.inf)).multiple
    except InvalidValue:
        return 0.0


def only(model: ComponentGraph, *names: str) -> ComponentGraph:
    """`model` with only the deployments `names`."""
    kept = tuple(option for option in model.deployments if option.name in names)
    return ComponentGraph(model.model, model.after, model.types, kept, model.req_per_s)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", default="", help="write the figures here")
    args = parser.parse_args()
    rows = []
    print("requests/s on 8 A100, from Table 1's rates")
    print(
        f"{'mix':16} {'overhead':>8} {'monolithic':>11} {'apart':>7} {'planned':>8}  gain over both"
    )
    for name, mix in MIXES.items():
        for overhead in OVERHEADS:
            model = graph(mix, overhead)
            names = [option.name for option in model.deployments]
            largest = max(names, key=lambda n: n.count("+"))
            apart = [n for n in names if "+" not in n]
            mono, split, ours = (
                best_rate(m, 8) for m in (only(model, largest), only(model, *apart), model)
            )
            rows.append(
                {
                    "mix": name,
                    "overhead": overhead,
                    "monolithic": mono,
                    "apart": split,
                    "plan": ours,
                }
            )
            gain = ours / max(mono, split) - 1.0
            print(f"{name:16} {overhead:8.1f} {mono:11.3f} {split:7.3f} {ours:8.3f}  {gain:+.1%}")
    print()
    model = graph(MIXES["spoken"], 1.5)
    rates = {2**c: best_rate(model, 2**c) for c in range(6)}
    cells = efficient_cells(rates)
    print("spoken, overhead 1.5: Algorithm 1")
    for size, rate in rates.items():
        kept = "a cell" if any(cell.gpus == size for cell in cells) else "left out"
        print(f"  {size:3d} GPUs  {rate:7.3f} req/s  {rate / size:6.4f} per GPU  {kept}")
    worse = mixtures(cells)
    if args.json:
        shown = {"rates": rows, "cells": rates, "greedy_worse_share": worse}
        Path(args.json).write_text(json.dumps(shown, indent=1), encoding="utf-8")


def mixtures(cells: tuple[Cell, ...]) -> float:
    """Compare Algorithm 2 with the exact mixture over 200 rates.

    Returns the share of rates for which Algorithm 2 needs more GPUs.
    """
    top = 3.0 * cells[-1].req_per_s
    worse, most = 0, 0
    for step in range(1, 201):
        rate = top * step / 200
        greedy = sum(size * n for size, n in greedy_mixture(cells, rate).items())
        exact = sum(size * n for size, n in fewest_gpus(cells, rate).items())
        worse += greedy > exact
        most = max(most, greedy - exact)
    print(f"200 rates up to {top:.1f} req/s: Algorithm 2 takes more GPUs than needed in {worse}, ")
    print(f"  at most {most} more")
    return worse / 200


if __name__ == "__main__":
    main()
