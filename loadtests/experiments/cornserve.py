"""Cornserve, sec. 4: deployment options for Qwen 2.5 Omni 7B on A100s.

Component rates are the paper's Table 1 (one A100-80GB each). The paper does not print its profiles
of shared deployments. Here a shared instance takes `overhead` times as long as its components
alone. Several overheads are shown, because the best choice depends on them. Mixes range from only
text to image-heavy and spoken requests. The figures are requests/s on 8 GPUs:
with all components in one deployment, with each component in its own, and by the plan.
"""

from __future__ import annotations

import math

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.component_graph import ComponentGraph, Deployment, RequestType
from autoscaler.domain.validation import InvalidValue
from autoscaler.modes.components.component_program import component_problem, most_for_budget
from autoscaler.performance import catalog
from loadtests.results.entry import Figures

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


def measure(seed: int) -> Figures:
    """Requests/s on 8 GPUs for each mix and overhead."""
    del seed
    found: Figures = {}
    for name, mix in MIXES.items():
        for overhead in OVERHEADS:
            model = graph(mix, overhead)
            names = [option.name for option in model.deployments]
            largest = max(names, key=lambda n: n.count("+"))
            apart = [n for n in names if "+" not in n]
            found.setdefault(name, {})[f"{overhead:g}"] = {
                "monolithic": best_rate(only(model, largest), 8),
                "apart": best_rate(only(model, *apart), 8),
                "planned": best_rate(model, 8),
            }
    return found
