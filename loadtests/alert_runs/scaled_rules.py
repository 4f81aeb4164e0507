"""The rules of deploy/prometheus with shorter times, because a run plays hours in minutes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_RANGE = re.compile(r"(\[|offset )(\d+)([smhd])")
_LEAST_S = 4
"""A range must hold two samples."""


def scaled(name: str, factor: float) -> dict[str, Any]:
    """The rule file `name` with all ranges, offsets and waits divided by `factor`."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * _UNIT_S[found[3]]
        return f"{found[1]}{max(_LEAST_S, round(seconds / factor))}s"

    rules: dict[str, Any] = yaml.safe_load((RULES / name).read_text())
    for group in rules["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule["expr"] = _RANGE.sub(shorter, rule["expr"])
            if "for" in rule:
                wait_s = int(rule["for"][:-1]) * _UNIT_S[rule["for"][-1]]
                rule["for"] = f"{round(wait_s / factor)}s"
    return rules


def alert_names(name: str) -> list[str]:
    """The alerts of the rule file `name`, in order."""
    groups = yaml.safe_load((RULES / name).read_text())["groups"]
    return [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
