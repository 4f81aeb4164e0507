"""The structure that deploy/structure.py measures: no cycles of folders, a short walk of a tick."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deploy import structure
from deploy.rooms import imports


@pytest.mark.parametrize("package", structure.PRODUCT)
def test_no_folders_import_each_other(package: str) -> None:
    assert structure.cycles(imports(structure.ROOT / package)) == []


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set[str]()}
    assert structure.cycles(graph) == [["b", "c"]]


def test_a_quiet_tick_is_short_and_runs_no_mode() -> None:
    made = structure.quiet_tick()
    assert "autoscaler/tick/observe.py" in made.files
    assert [file for file in made.files if "/modes/" in file] == []
    assert len(made.files) <= 60
    assert made.hops <= 180


def test_the_core_imports_no_mode() -> None:
    code = (
        "import sys, autoscaler.decide, autoscaler.planning.planner\n"
        "sys.exit('autoscaler.modes' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=structure.ROOT)
