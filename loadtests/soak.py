"""A soak of `shoal up`: `python -m loadtests.soak [--minutes 60] [--speed 30] [--out FILE]`.

A scenario is repeated. Every few seconds, memory, open files and threads of each process are
sampled. After the first minutes, the slope of each process that lived until the end is fitted.
The embedded broker is judged by its limit. Engines come and go with demand, so they are judged
together. Files of logs and recordings may not grow beyond their limits. JSON keys:

    minutes, domain_h, processes: {name: {memory_mib, files, threads: {mean, percent_per_h, low,
    high}}}, engines: {count, memory_mib}, folders: {name: {mib_after_skip, mib_most, mib_end,
    files_most, files_end}}, grew
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from loadtests.arguments import number
from loadtests.soak_scenario import repeated
from loadtests.soak_slopes import Slope, slope_of
from streams.files.user_errors import UserError

_EVERY_S = 5.0
_MOST_PERCENT_PER_H = 1.0
_ENGINE = "executors.engines"
_MOST_MIB = {"streams.broker": 440.0}
"""Processes that fill a limit of their own over hours, in MiB: the embedded broker keeps 5 MiB of
records in each partition (docs/how-to/kafka.md)."""
_FIGURES = ("memory_mib", "files", "threads")


@dataclass(slots=True)
class Samples:
    """(time in s, value) of each process by figure, and (time, MiB, files) of folders by name."""

    processes: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    engines: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[str, list[tuple[float, float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def take(self, root: int, folder: Path, at_s: float) -> None:
        """Sample all processes below `root`, and the files below `folder`."""
        engines, memory_mib = 0, 0.0
        for pid in (root, *_descendants(root)):
            with contextlib.suppress(OSError, IndexError, KeyError, ValueError):
                name, values = _sampled(pid)
                if name.startswith(_ENGINE):
                    engines += 1
                    memory_mib += values[0]
                    continue
                mine = self.processes[name, pid]
                for figure, value in zip(_FIGURES, values, strict=True):
                    mine[figure].append((at_s, value))
        self.engines["count"].append((at_s, float(engines)))
        self.engines["memory_mib"].append((at_s, memory_mib))
        sizes, counts = Counter[str](), Counter[str]()
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    sizes[_kind(path, folder)] += path.stat().st_size
                    counts[_kind(path, folder)] += 1
        for kind, size in sizes.items():
            self.sizes[kind].append((at_s, size / 2**20, counts[kind]))


def _descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                children[int(parent)].append(int(entry.name))
    waiting = [root]
    while waiting:
        found = children[waiting.pop()]
        yield from found
        waiting += found


def _sampled(pid: int) -> tuple[str, tuple[float, float, float]]:
    """Name, anonymous memory in MiB, open files, and threads of a process."""
    folder = Path(f"/proc/{pid}")
    lines = (folder / "status").read_text().splitlines()
    status = {key: value.split()[0] for key, _, value in (one.partition(":") for one in lines)
              if value.split()}  # fmt: skip
    memory_mib = (int(status["RssAnon"]) + int(status["VmSwap"])) / 1024.0
    files = float(sum(1 for _ in (folder / "fd").iterdir()))
    return _name(folder), (memory_mib, files, float(status["Threads"]))


def _name(folder: Path) -> str:
    argv = (folder / "cmdline").read_bytes().decode().split("\0")
    name = argv[argv.index("-m") + 1] if "-m" in argv[:-1] else Path(argv[1]).name
    configs = [Path(b).stem for a, b in pairwise(argv) if a == "--config"]
    return f"{name} {configs[0]}" if name == "executors.node" and configs else name


def _kind(path: Path, folder: Path) -> str:
    """The folder of a file below the folder of the run; for files of that one, their name."""
    parts = [one for one in path.relative_to(folder).parts if not one.startswith("shoal-up-")]
    return "/".join(parts[:-1]) or parts[0]


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 nothing grew, 1 something did, 2 the run failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak")
    parser.add_argument("--minutes", type=number(0.1, 1e5), default=60.0, help="real time (60)")
    parser.add_argument("--speed", type=number(0.1, 1000.0), default=30.0)
    parser.add_argument("--skip", type=number(0.0, 1e5), default=10.0, help="first minutes (10)")
    parser.add_argument("--scenario", default="day")
    parser.add_argument("--record-mib", type=int, default=64, help="limit of the recording (64)")
    parser.add_argument("--out", type=Path, help="also write the result here")
    options = parser.parse_args(argv)
    try:
        found, code = _run(options)
    except UserError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    text = json.dumps(found, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return code


def _run(options: argparse.Namespace) -> tuple[dict[str, object], int]:
    samples, wanted_s = Samples(), 60.0 * options.minutes
    with tempfile.TemporaryDirectory(prefix="shoal-soak-") as made:
        folder = Path(made)
        inputs, run = folder / "inputs", folder / "run"
        inputs.mkdir()
        run.mkdir()
        scenario = repeated(options.scenario, options.speed * (wanted_s + 120.0), inputs)
        argv = [
            sys.executable, "-m", "streams.cli.entry", "up", "--scenario", str(scenario),
            "--speed", str(options.speed), "--http", "127.0.0.1:0",
            "--record", str(run / "record"), "--record-mib", str(options.record_mib),
        ]  # fmt: skip
        with (run / "stdout.txt").open("wb") as out:
            process = subprocess.Popen(
                argv, stdout=out, stderr=out, env={**os.environ, "TMPDIR": str(run)}
            )
            began_s = time.monotonic()
            try:
                while (at_s := time.monotonic() - began_s) < wanted_s:
                    if process.poll() is not None:
                        tail = (run / "stdout.txt").read_text(errors="replace")[-2000:]
                        raise UserError(f"shoal up ended with code {process.returncode}:\n{tail}")
                    samples.take(process.pid, run, at_s)
                    time.sleep(_EVERY_S)
            finally:
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60.0)
                process.kill()
    return result(samples, 60.0 * options.skip, wanted_s, options)


def result(
    samples: Samples, skip_s: float, until_s: float, options: argparse.Namespace
) -> tuple[dict[str, object], int]:
    """The slopes after `skip_s` of all processes that lived from then until the end, and the exit
    code."""
    processes: dict[str, dict[str, object]] = {}
    grew: list[str] = []
    for (name, pid), figures in sorted(samples.processes.items()):
        times = [at_s for at_s, _ in figures["memory_mib"]]
        if times[0] > skip_s or times[-1] < until_s - 3.0 * _EVERY_S:
            continue
        key = name if name not in processes else f"{name} ({pid})"
        processes[key] = {}
        for figure in _FIGURES:
            slope = slope_of([one for one in figures[figure] if one[0] >= skip_s])
            processes[key][figure] = _rounded(slope)
            if figure == "memory_mib" and name in _MOST_MIB:
                if max(value for _, value in figures[figure]) > _MOST_MIB[name]:
                    grew.append(f"{key}: {figure}")
            elif slope is not None and slope.low > _MOST_PERCENT_PER_H:
                grew.append(f"{key}: {figure}")
    engines = {
        figure: _rounded(slope_of([one for one in series if one[0] >= skip_s]))
        for figure, series in samples.engines.items()
    }
    folders = {
        kind: {
            "mib_after_skip": round(next((m for at_s, m, _ in seen if at_s >= skip_s), 0.0), 3),
            "mib_most": round(max(m for _, m, _ in seen), 3),
            "mib_end": round(seen[-1][1], 3),
            "files_most": max(count for _, _, count in seen),
            "files_end": seen[-1][2],
        }
        for kind, seen in sorted(samples.sizes.items())
    }
    found = {
        "minutes": round(until_s / 60.0, 1),
        "domain_h": round(options.speed * until_s / 3600.0, 1),
        "processes": processes,
        "engines": engines,
        "folders": folders,
        "grew": grew,
    }
    return found, int(bool(grew))


def _rounded(slope: Slope | None) -> dict[str, float] | None:
    return None if slope is None else {k: round(v, 3) for k, v in asdict(slope).items()}


if __name__ == "__main__":
    sys.exit(main())
