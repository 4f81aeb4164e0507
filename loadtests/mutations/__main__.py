"""python -m loadtests.mutations [--seed N] [--count N] [--tests PATH ...] [FOLDER ...]"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from loadtests.mutations.judge import OPTIONS, Judge, forget_packages, forked
from loadtests.mutations.mutants import Mutant, mutants

_ROOT = Path(__file__).parents[2]
_TESTS = {
    "autoscaler/apply": ("tests/unit/apply", "tests/unit/decide"),
    "executors/node": ("tests/unit/executors", "tests/property/executors"),
}
CORE = (
    "autoscaler/sizing",
    "autoscaler/replan",
    "autoscaler/apply",
    "autoscaler/rollout",
    "executors/node",
)


def folder_tests(folder: str) -> list[str]:
    """The tests of a folder: those of its name, unless the table above names others."""
    name = Path(folder).name
    named = _TESTS.get(folder, (f"tests/unit/{name}", f"tests/property/{name}"))
    found = [path for path in named if (_ROOT / path).is_dir()]
    if not found:
        raise SystemExit(f"{folder!r}: a folder with tests in {' or '.join(named)}, or use --tests")
    return found


def drawn(folders: Sequence[str], seed: int, count: int) -> list[tuple[str, Mutant]]:
    """`count` changes of the files in `folders`, each as likely as any other, with its folder."""
    every = [
        (folder, mutant)
        for folder in folders
        for file in sorted((_ROOT / folder).rglob("*.py"))
        for mutant in mutants(_ROOT, file)
    ]
    return sorted(
        random.Random(seed).sample(every, min(count, len(every))), key=lambda one: str(one[1])
    )


@contextlib.contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A temporary copy of the repository's files."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder).resolve() / "shoal"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
        yield copy


def judged(copy: Path, tests: Sequence[str], ours: Sequence[Mutant]) -> tuple[list[str], int]:
    """(tests that fail without a change, number of survivors), with a line for each survivor. For a
    process of its own, which becomes the test run."""
    report = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(_ROOT)))]
    forget_packages()
    survivors: list[Mutant] = []

    def survived(mutant: Mutant, count: int) -> None:
        survivors.append(mutant)
        os.write(report, f"{mutant}  (executed by {count} tests)\n".encode())

    judge = Judge(copy, ours, survived)
    code = pytest.main([*OPTIONS, *tests], plugins=[judge])
    failed = judge.failed or ([] if code == 0 else [f"pytest ended with code {int(code)}"])
    return failed, len(survivors)


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 at most `--most` percent survive, 1 more do, 2 bad arguments or tests that
    fail without a change.
    """
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.mutations",
        description="Draw small changes of the source and report those that no test notices.",
    )
    parser.add_argument("folders", nargs="*", default=CORE, metavar="FOLDER")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--count", type=int, default=100, help="changes to draw (100)")
    parser.add_argument("--most", type=float, default=20.0, help="percent that may survive (20)")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="instead of each folder's own")
    arguments = parser.parse_args(argv)
    folders = [str(Path(folder)) for folder in arguments.folders]
    for folder in folders:
        if not list((_ROOT / folder).rglob("*.py")):
            parser.error(f"{folder!r}: a folder of the repository with Python files")
    print(f"seed {arguments.seed}", flush=True)
    chosen = drawn(folders, arguments.seed, arguments.count)
    total = 0
    with copied(_ROOT) as copy:
        for folder in folders:
            ours = [mutant for where, mutant in chosen if where == folder]
            if not ours:
                continue
            verdict = forked(
                partial(judged, copy, arguments.tests or folder_tests(folder), ours), 1e6
            )
            failed, survivors = verdict or (["the tests ended their process"], 0)
            if failed:
                print(f"error: {folder}: its tests fail without a change: {', '.join(failed)}")
                return 2
            print(f"{folder}: {survivors} of {len(ours)} survive", flush=True)
            total += survivors
    share = 100 * total / len(chosen)
    print(f"{total} of {len(chosen)} survive ({share:.0f}%), seed {arguments.seed}")
    return int(share > arguments.most)


if __name__ == "__main__":
    sys.exit(main())
