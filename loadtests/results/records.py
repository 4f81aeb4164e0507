"""Records of results: what was measured when, on which code, and whether the code is still that.

A record is `records/NAME.json`: the figures of each seed with its CPU seconds, and the date, the
commit and a hash of the code. The hash covers the modules that the measurement imports, directly or
not, the packaged data and the inputs. Comments, docstrings and formatting do not change it.
"""

from __future__ import annotations

import ast
import hashlib
import math
import resource
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from loadtests.results.entry import ROOT, Entry, Figures

FOLDER = Path(__file__).parent / "records"
PACKAGES = ("autoscaler", "executors", "loadtests", "streams", "topics")
_DATA = "autoscaler/data/*"
_DIGITS = 6
_CHANGED = " with changes"


@dataclass(frozen=True, slots=True)
class SeedRun:
    """The figures of one seed. cpu_s: CPU seconds of the measurement."""

    seed: int
    cpu_s: float
    figures: Figures


@dataclass(frozen=True, slots=True)
class Record:
    """The measurement of an entry. date: in UTC. code: see the module."""

    name: str
    date: str
    commit: str
    code: str
    runs: tuple[SeedRun, ...]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all seeds."""
        return sum(one.cpu_s for one in self.runs)


def path_of(name: str) -> Path:
    """The file of a record."""
    return FOLDER / f"{name}.json"


def read(name: str) -> Record | None:
    """The record called `name`; None if nothing was measured yet."""
    path = path_of(name)
    if not path.exists():
        return None
    given = orjson.loads(path.read_bytes())
    return Record(**{**given, "runs": tuple(SeedRun(**run) for run in given["runs"])})


def write(record: Record) -> None:
    """Write the record's file."""
    FOLDER.mkdir(exist_ok=True)
    text = orjson.dumps(asdict(record), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    path_of(record.name).write_bytes(text)


def measured(entry: Entry, seeds: tuple[int, ...]) -> Record:
    """Measure `entry` for `seeds`."""
    runs = []
    for seed in seeds:
        begin = _cpu_s()
        figures = _rounded(entry.measure(seed))
        runs.append(SeedRun(seed, round(_cpu_s() - begin, 1), figures))
    today = datetime.now(UTC).date().isoformat()
    return Record(entry.name, today, commit(), code_hash(entry), tuple(runs))


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def _rounded(value: Any) -> Any:
    """`value` with numbers of six digits, which keeps records small."""
    if isinstance(value, dict):
        return {str(name): _rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number}: a figure is a finite number")
    return float(f"{number:.{_DIGITS}g}")


def numbers(figures: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in `figures` with their full names."""
    if isinstance(figures, dict):
        for key, value in figures.items():
            yield from numbers(value, f"{name}/{key}" if name else key)
    elif isinstance(figures, list):
        for index, value in enumerate(figures):
            yield from numbers(value, f"{name}/{index}")
    elif isinstance(figures, int | float):
        yield name, float(figures)


def differences(entry: Entry, record: Record, again: Record) -> list[str]:
    """A line for each figure of `again` that is outside of the entry's tolerance."""
    found = []
    known = {run.seed: dict(numbers(run.figures)) for run in record.runs}
    for run in again.runs:
        fresh = dict(numbers(run.figures))
        for name in sorted(known[run.seed].keys() | fresh.keys()):
            old, new = known[run.seed].get(name), fresh.get(name)
            allowed = entry.tolerance_of(name)
            if old is None or new is None or abs(new - old) > allowed * abs(old) + 1e-9:
                found.append(
                    f"{entry.name}, seed {run.seed}, {name}: {new}, recorded {old}, tolerance "
                    f"{allowed:.0%}"
                )
    return found


def is_current(entry: Entry, record: Record) -> bool:
    """Whether the code and the inputs are those of the record."""
    return record.code == code_hash(entry) and {one.seed for one in record.runs} == {*entry.seeds}


def commit() -> str:
    """The commit of the running code; with a note if a file of the code has changed since."""
    head = _git("rev-parse", "--short=8", "HEAD").strip()
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", *PACKAGES).splitlines()
    return f"{head}{_CHANGED}" if any("/records/" not in line for line in changes) else head


def named_commits(entries: Sequence[Entry]) -> None:
    """Name the present commit in records of equal code whose own commit is not in its history.

    After a rebase, the commit of a measurement is in no history.
    """
    head = commit()
    for entry in entries:
        record = read(entry.name)
        if record is None or head.endswith(_CHANGED) or not is_current(entry, record):
            continue
        known = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", record.commit, "HEAD"]
        if subprocess.run(known, capture_output=True).returncode != 0:
            write(replace(record, commit=head))


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def code_hash(entry: Entry) -> str:
    """Hash of the code, the packaged data and the inputs of `entry`."""
    digest = hashlib.sha256()
    for path in sorted(dependencies(entry.module)):
        digest.update(_shape_of(path).encode())
    data = [*ROOT.glob(_DATA), *(ROOT / name for name in entry.inputs)]
    for path in sorted(data):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def dependencies(module: str) -> set[Path]:
    """Files of the modules of this repository that `module` imports, directly or not."""
    found: set[Path] = set()
    todo = [module]
    while todo:
        path = _file_of(todo.pop())
        if path is not None and path not in found:
            found.add(path)
            todo += _imports_of(path)
    return found


@cache
def _file_of(module: str) -> Path | None:
    if module.partition(".")[0] not in PACKAGES:
        return None
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file if file.is_file() else None


@cache
def _imports_of(path: Path) -> tuple[str, ...]:
    """Modules that the file imports anywhere, and names in them that may be modules."""
    found = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(found)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def _shape_of(path: Path) -> str:
    """The file's syntax tree as text, equal in all versions of Python."""
    return repr(_shape(_tree(path)))


def _shape(node: Any) -> Any:
    if isinstance(node, list):
        return [_shape(one) for one in node if not _is_text(one)]
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, _shape(value)) for name, value in ast.iter_fields(node))
    return type(node).__name__, *((n, value) for n, value in fields if value not in (None, []))


def _is_text(node: Any) -> bool:
    """Whether a statement is a docstring."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
