"""Worlds that differ from the predictions."""

from __future__ import annotations

from pathlib import Path

from loadtests.perturbed import WORLDS, run


def test_slow_engines_are_found_from_their_tokens(tmp_path: Path) -> None:
    """If only missed SLOs showed slow engines, 85% would attain the SLO."""
    slower = next(world for world in WORLDS if world.name == "engines 25% slower")
    assert run(slower, "shoal", 1, tmp_path).slo_attainment > 0.9
