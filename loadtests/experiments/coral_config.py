"""Write the `shoal.yaml` of one of Coral's setups, for `shoal plan` and `shoal up`.

    python -m loadtests.experiments.coral_config [--setup core|extended] [--library vllm|coral]
           [--nodes N] > shoal.yaml

`coral_setup` has models, SLOs, nodes, prices and demand. In library `coral` an instance may combine
any nodes, as in the paper (only for simulated engines). In library `vllm` it uses equal slices of
nodes, which vLLM can run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from autoscaler.domain.validation import InvalidValue, whole
from loadtests.experiments.coral_setup import REGIONS, SETUPS, Setup

PIPELINES = {"vllm": "same-slice", "coral": "any"}


def config(setup: Setup, library: str, most_nodes: int) -> str:
    """Return the text of the file; at most `most_nodes` of each kind in each region."""
    lines = [
        f"# Coral's {setup.name} setup: {len(setup.models)} models, {len(setup.nodes)} kinds of "
        f"nodes, {len(setup.regions)} regions.",
        "defaults: {utilization: 1.0, max_len: 8192, capacity: predicted}",
        "regions:",
    ]
    for region in setup.regions:
        lines.append(f"  {region}:")
        for node in setup.nodes:
            usd = node.usd_per_h * REGIONS[region]
            name = f"{node.gpu.name.lower().replace(' ', '-')}x{node.gpus}"
            lines.append(
                f"    {name}: {{gpu: {node.gpu.name}, per_node: {node.gpus}, max: {most_nodes}, "
                f"price: {usd:.4f}}}"
            )
    lines.append("models:")
    for model in setup.models:
        tokens, answer = model.lengths
        lines += [
            f"  {model.name}:",
            f"    source: {model.source}",
            "    engine: joined",
            f"    slo: {{ttft: {model.prefill_ms:g}ms, tpot: {model.decode_ms:g}ms}}",
            f"    workload: {{req_per_s: {setup.req_per_s:g}, input: {tokens}, output: {answer}}}",
        ]
        if library == "vllm":
            lines.append("    disaggregate: false")
    lines += ["engines:", f"  joined: {{pipelines: {PIPELINES[library]}}}", ""]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.experiments.coral_config")
    parser.add_argument("--setup", choices=list(SETUPS), default="extended")
    parser.add_argument("--library", choices=list(PIPELINES), default="vllm")
    parser.add_argument("--nodes", type=int, default=400, help="most of each kind in each region")
    args = parser.parse_args(argv)
    try:
        whole("--nodes", args.nodes, 1, 100_000)
    except InvalidValue as error:
        print(f"coral_config: {error}", file=sys.stderr)
        return 2
    print(config(SETUPS[args.setup], args.library, args.nodes), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
