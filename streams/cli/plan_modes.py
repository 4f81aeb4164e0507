"""The options of `shoal plan` by mode. An option that the mode would ignore is refused."""

from __future__ import annotations

import argparse

from autoscaler.domain.cluster import Objective
from streams.files.shoal_yaml import Config
from streams.files.user_errors import UserError

_COMPONENTS = "a file with models of components"
_QUALITY = "a service that stands for several models"
_BUDGET = "budget mode"


def refuse_ignored(args: argparse.Namespace, config: Config) -> None:
    """UserError names the first option that the file's mode would ignore."""
    spends = args.budget is not None or config.cluster.policy.spends_budget
    declared = config.cluster.policy.objective
    makespan = (args.objective or declared) == Objective.MAKESPAN
    mode, unused = "", tuple[str, ...]()
    if config.graphs:
        mode, unused = (
            _COMPONENTS,
            ("demand", "fleet", "strategy", "objective", "requests", "stats"),
        )
    elif config.cluster.routes:
        mode, unused = _QUALITY, ("fleet", "budget", "objective", "requests", "stats")
    elif spends:
        mode, unused = _BUDGET, ("strategy", "stats")
    for option in unused:
        if _given(args, option):
            raise UserError(f"--{option}: not for {mode}")
    if args.pareto is not None and not config.cluster.routes:
        raise UserError(f"--pareto: {config.path} declares no service with a quality")
    if args.objective and not spends:
        raise UserError("--objective: only with --budget")
    if args.requests is not None and not makespan:
        raise UserError("--requests: only with --objective makespan")


def _given(args: argparse.Namespace, option: str) -> bool:
    value = getattr(args, option)
    return value not in (None, False) and not (option == "strategy" and value == "shoal")
