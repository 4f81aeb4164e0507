"""Changes of source code that the tests should notice."""

from __future__ import annotations

import ast
import gc
import os
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest

from loadtests.mutations.__main__ import CORE, drawn, folder_tests, main
from loadtests.mutations.judge import _replace_code, forked
from loadtests.mutations.mutants import mutants

SOURCE = '''"""Doc with 1 < 2."""

LIMIT = 20


def lower(values: list[int | None], most: int = 3) -> float:
    """At least 1."""
    if not values or most <= 0:
        raise ValueError(f"{most + 1} é")
    total = 0.0
    for one in values:
        if one is None:
            continue
        total += min(one, most) * 0.5
    values.clear()
    return max(total, LIMIT)
'''


def changes(tmp_path: Path, source: str) -> list[str]:
    file = tmp_path / "lower.py"
    file.write_text(source, encoding="utf-8")
    found = mutants(tmp_path, file)
    for one in found:
        ast.parse(one.source(source.encode()))
        assert one.line in one.lines or one.function is None
    return [str(one).removeprefix("lower.py:") for one in found]


def test_every_kind_of_change_is_drawn_and_parses(tmp_path: Path) -> None:
    assert changes(tmp_path, SOURCE) == [
        "3: 20 -> 10",
        "3: 20 -> 40",
        "6: 3 -> 2",
        "6: 3 -> 4",
        "8: not values -> (values)",
        "8: or -> and",
        "8: <= -> <",
        "8: <= -> >",
        "8: 0 -> 1",
        '9: raise ValueError(f"{most + 1} é") -> pass',
        "10: 0.0 -> 1.0",
        "12: is -> is not",
        "13: continue -> pass",
        "14: total += min(one, most) * 0.5 -> pass",
        "14: min -> max",
        "14: * -> /",
        "14: 0.5 -> 0.25",
        "14: 0.5 -> 1.0",
        "15: values.clear() -> pass",
        "16: return max(total, LIMIT) -> return None",
        "16: max -> min",
    ]


def test_a_change_is_at_import_or_in_its_outermost_function(tmp_path: Path) -> None:
    file = tmp_path / "nested.py"
    file.write_text(
        "A = 1\nclass B:\n    c: int = 2\n    @property\n    def d(self, e=3):\n"
        "        def f():\n            return 4\n        return f\n"
    )
    places = {one.before: one.function for one in mutants(tmp_path, file)}
    assert places["1"] is None and places["2"] is None and places["3"] is None
    assert places["4"] == places["return f"] == ("B.d", 4)


def test_a_change_reaches_functions_that_are_exempt_from_garbage_collection() -> None:
    """The test run freezes what it collected."""
    made: dict[str, Any] = {}
    gone = weakref.proxy(compile("", "gone.py", "exec"))
    exec(compile("def f():\n    return 1\n", "frozen.py", "exec"), made)  # noqa: S102
    gc.freeze()
    changed = compile("def f():\n    return 2\n", "frozen.py", "exec")
    try:
        _replace_code("frozen.py", ("f", 1), changed)
    finally:
        gc.freeze()
    assert made["f"]() == 2
    with pytest.raises(ReferenceError):
        str(gone)


def test_a_fault_of_the_judge_is_no_noticed_change() -> None:
    assert forked(lambda: 3, 60.0) == 3
    assert forked(lambda: os.kill(os.getpid(), signal.SIGKILL), 60.0) is None
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        forked(lambda: 1 // 0, 60.0)


def test_a_seed_draws_the_same_changes_again() -> None:
    first = drawn(CORE, 7, 30)
    assert first == drawn(CORE, 7, 30) != drawn(CORE, 8, 30)
    assert len({str(mutant) + mutant.after for _, mutant in first}) == 30
    assert {folder for folder, _ in first} <= set(CORE)


def test_folders_without_sources_or_tests_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["autoscaler/nothing"])
    assert "'autoscaler/nothing'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="tests/unit/modes"):
        folder_tests("autoscaler/modes")
    assert all(folder_tests(folder) for folder in CORE)
