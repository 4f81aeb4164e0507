"""The release's scorecard: every policy on a fixed set of traces, written to
docs/results/scorecard.md.

usage: python -m loadtests.scorecard [--traces DIR] [--work DIR] [--only NAME,...] [--out FILE]
      [--jobs N] [--share X] [--draws N] [--policies A,B,...]

Each scenario is one `shoal backtest` of all policies, and of ours without each of its parts. Knobs
are tuned on another trace. For a recorded trace it has even arrivals with the same mean rate and
lengths; for a generated one it is a shorter draw. A generated trace is drawn several times
(--draws), because a single result depends on a few node starts. --work keeps the JSON of each
scenario. A scenario with a JSON file is not run again, so scenarios can run one at a time. Spans
are short; --share 3 makes generated and cut traces three times as long. --traces names the folder
of the public traces. The page lists scenarios whose file is missing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.policies.registry import DEFAULT, VARIANTS
from loadtests.arrivals import Draw, Step, poisson, resampled_lengths
from loadtests.decision_bench import BUNDLED_TRACE
from loadtests.scorecard_page import write
from loadtests.scorecard_scenarios import MODELS, SCENARIOS, Make, Scenario
from streams.cli.main import main as shoal
from streams.tools.replay.servegen import is_servegen, load_servegen
from streams.tools.replay.traces import Trace, load_trace

HERE = Path(__file__).parent
ROOT = HERE.parent
_TUNE, _TUNE_S = 0.4, 300.0
"""Length of the tuning trace: as a share of the judged one, and at least this many seconds."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or the exit code of the backtest that failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.scorecard")
    parser.add_argument("--traces", type=Path, help="the folder of the public traces")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "scorecard")
    parser.add_argument("--only", default=",".join(s.name for s in SCENARIOS))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "scorecard.md")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="of the length of every trace")
    parser.add_argument("--draws", type=int, default=3, help="of every generated trace")
    parser.add_argument("--policies", default=",".join((*DEFAULT, *VARIANTS)), metavar="A,B")
    args = parser.parse_args(argv)
    if args.draws < 1:
        parser.error(f"--draws: {args.draws} is not allowed; 1 or more")
    args.work.mkdir(parents=True, exist_ok=True)
    known = {scenario.name for scenario in SCENARIOS}
    wanted = args.only.split(",")
    if unknown := sorted(set(wanted) - known):
        parser.error(f"--only: {', '.join(unknown)}: one of {', '.join(sorted(known))}")
    for scenario in SCENARIOS:
        report = _report(scenario, args)
        source = source_of(scenario, args.traces)
        if scenario.name not in wanted or report.exists() or source is None:
            continue
        begin = time.process_time()
        policies = [one for one in args.policies.split(",") if one in (scenario.policies or [one])]
        code = shoal(
            ["backtest", *_options(scenario, source, args), "--policies", ",".join(policies),
             "--jobs", str(args.jobs), "--json", str(report)]
        )  # fmt: skip
        if code:
            return code
        report.with_suffix(".commit").write_text(commit_of_code())
        print(
            f"{scenario.name}: {time.process_time() - begin:.0f} CPU s in this process\n",
            flush=True,
        )
    found = {s.name: (s.about, _report(s, args)) for s in SCENARIOS}
    reports = {
        name: (about, orjson.loads(path.read_bytes()))
        for name, (about, path) in found.items()
        if path.exists()
    }
    if not reports:
        parser.error("nothing was run")
    commits = {name: found[name][1].with_suffix(".commit").read_text() for name in reports}
    left_out = [name for name in found if name not in reports]
    write(args.out, reports, left_out, _head(args.share, commits))
    print(f"{args.out}: {len(reports)} of {len(SCENARIOS)} scenarios")
    return 0


def _options(scenario: Scenario, source: Path, args: argparse.Namespace) -> list[str]:
    """Options of `shoal backtest` for the scenario's traces, which are written to the work
    folder."""
    if scenario.recipe is not None:
        return scenario.recipe(source.parent, args.work)
    judged, other = scorecard_traces(scenario, source, args.work, args.share, args.draws)
    first, *also = map(str, judged)
    return [
        "--trace", first, "--tune", str(other),
        *(["--also", *also] if also else []),
        *(["--fluid"] if scenario.fluid else []),
        *(["--config", str(HERE / scenario.config)] if scenario.config else []),
    ]  # fmt: skip


def _report(scenario: Scenario, args: argparse.Namespace) -> Path:
    """Path of the scenario's JSON."""
    draws = f"-{args.draws}" if scenario.make else ""
    folder: Path = args.work
    return folder / f"{scenario.name}-{args.share:g}{draws}.json"


def commit_of_code() -> str:
    """Commit of the running code."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    changed = [*git, "status", "--porcelain", "--untracked-files=no"]
    if subprocess.run(changed, capture_output=True, text=True, check=True).stdout.strip():
        return f"{head} with changes"
    return head


def _head(share: float, commits: Mapping[str, str]) -> str:
    """Text for the page: conditions, date and commit of the runs."""
    models = ", ".join(f"{name} {part:.0%}" for name, part in MODELS.items())
    by_commit: dict[str, list[str]] = {}
    for name, commit in commits.items():
        by_commit.setdefault(commit, []).append(name)
    runs = "; ".join(f"{', '.join(names)}: commit {commit}" for commit, names in by_commit.items())
    lines = [
        "Shoal against other policies: the rent of the fleet, and the share of requests that met "
        "their SLO. `python -m loadtests.scorecard` writes this page. "
        "[Backtest](../reference/backtest.md) describes the policies and the columns.",
        "",
        f"- **Fleet**: three models ({models} of the requests) on "
        "`streams/data/backtest.yaml`, unless a trace names another file.",
        "- **Knob**: each policy has one parameter, Shoal too. It was set on another trace to the "
        "cheapest value that reached 95%: another seed of a generated trace, or even arrivals with "
        "the lengths and the mean rate of a recorded one. That trace is "
        f"{_TUNE:.0%} as long, but at least {_TUNE_S / 60:.0f} min.",
        "- **Draws**: figures of a generated trace are means over its draws. Brackets show the "
        "smallest and the largest draw (the middle 90% of more than 20 draws).",
        "- **Cost** includes 4 minutes before the first request, in which every fleet starts.",
        f"- **Runs** until {datetime.now(UTC).date().isoformat()}: {runs}.",
    ]
    if share != 1.0:
        lines.append(f"- **Length**: traces are {share:g} times as long as described below.")
    return "\n".join(lines)


def source_of(scenario: Scenario, traces: Path | None) -> Path | None:
    """The file with the lengths, and with the requests if the scenario has no `make`.

    None if the file does not exist.
    """
    if not scenario.file:
        return BUNDLED_TRACE
    path = traces / scenario.file if traces else None
    return path if path is not None and path.exists() else None


def scorecard_traces(
    scenario: Scenario, source: Path, folder: Path, share: float, draws: int
) -> tuple[list[Path], Path]:
    """(traces to judge, trace for tuning), as plain CSV files.

    draws: number of traces to judge if they are generated.
    """
    tune = folder / f"{scenario.name}-tune.csv"
    judged = []
    for number in range(1, draws + 1 if scenario.make else 2):
        random = np.random.default_rng([number, *scenario.name.encode()])
        span_s, rate, draw, arrivals = drawn_requests(scenario, source, share, random)
        name = scenario.name if number == 1 else f"{scenario.name}-{number}"
        judged.append(written_trace(folder / f"{name}.csv", arrivals))
        if number == 1:
            tune_s = max(_TUNE_S, _TUNE * span_s)
            made = _made(scenario, scenario.make or _even, tune_s, rate, draw, random)
            written_trace(tune, made)
    return judged, tune


def drawn_requests(
    scenario: Scenario, source: Path, share: float, random: np.random.Generator
) -> tuple[float, float, Draw, list[Arrival]]:
    """One draw of the scenario's requests: (seconds, requests/s, lengths, requests)."""
    span_s = share * scenario.span_s
    trace = _slice(scenario, source, span_s, random)
    pairs = list(zip(trace.input_tokens, trace.output_tokens, strict=True))
    draw = resampled_lengths(pairs)
    if scenario.make is not None:
        rate = scenario.req_per_s
        made = _made(scenario, scenario.make, span_s, rate, draw, random)
        return span_s, rate, draw, made
    span_s = min(span_s, trace.duration_s)
    shares = list(scenario.models.values())
    names = random.choice(list(scenario.models), len(pairs), p=shares)
    arrivals = [
        Arrival(at_ms / 1000.0, str(name), *pair)
        for at_ms, name, pair in zip(trace.arrivals_ms, names, pairs, strict=True)
    ]
    return span_s, len(pairs) / span_s, draw, arrivals


def _slice(scenario: Scenario, source: Path, span_s: float, random: np.random.Generator) -> Trace:
    to_s = scenario.from_s + span_s
    if is_servegen(source):
        return load_servegen(source, scenario.from_s, to_s, scenario.rate_scale, random)
    trace = load_trace(source)
    if scenario.make is not None:
        return trace
    count = sum(at_ms < 1000.0 * to_s for at_ms in trace.arrivals_ms)
    return Trace(
        source,
        trace.form,
        trace.arrivals_ms[:count],
        trace.input_tokens[:count],
        trace.output_tokens[:count],
    )


def _even(
    model: str, rate: float, span_s: float, draw: Draw, random: np.random.Generator
) -> list[Arrival]:
    return poisson(model, [Step(0.0, rate)], span_s, draw, random)


def _made(
    scenario: Scenario,
    make: Make,
    span_s: float,
    rate: float,
    draw: Draw,
    random: np.random.Generator,
) -> list[Arrival]:
    shares = scenario.models.items()
    found = [a for model, part in shares for a in make(model, part * rate, span_s, draw, random)]
    return sorted(found, key=lambda arrival: arrival.at_s)


def written_trace(path: Path, arrivals: Sequence[Arrival]) -> Path:
    rows = [f"{a.at_s:.3f},{a.model},{a.input_tokens},{a.output_tokens}" for a in arrivals]
    path.write_text("\n".join(["time,model,input_tokens,output_tokens", *rows]) + "\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
