"""python -m loadtests.invariants [--seeds N | --seed N] [--faults LIST] [--jobs N] [--json OUT]"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from loadtests.invariants.scenario import KINDS, scenario
from loadtests.invariants.simulated_run import World


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one seed: the broken promises as text, the number of checks of each line of the
    table of promises (`under`: by line and kind of fault), and the simulated seconds.
    """

    seed: int
    broken: tuple[str, ...]
    checked: dict[str, int]
    under: dict[tuple[str, str], int]
    faults: tuple[str, ...]
    seconds: float
    cpu_s: float


def run(seed: int, kinds: Sequence[str] = ()) -> Outcome:
    """Simulate `seed`, with faults of `kinds` if any are given."""
    return outcome(World(scenario(seed, kinds)))


def outcome(world: World) -> Outcome:
    """Run `world`. An exception in the product counts as a broken promise."""
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    try:
        broken = [str(one) for one in world.run()]
    except Exception as error:
        broken = [f"crash at {world.now_s:.1f} s: {type(error).__name__}: {error}"]
    faults = tuple(str(fault) for fault in world.scenario.faults)
    took = time.process_time() - began
    checked = dict(world.promises.checked)
    under = dict(world.promises.under)
    return Outcome(world.scenario.seed, tuple(broken), checked, under, faults, world.now_s, took)


def _outcomes(seeds: range, kinds: Sequence[str], jobs: int) -> Iterator[Outcome]:
    one = partial(run, kinds=kinds)
    if jobs == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, seeds, chunksize=1)


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(kind.strip() for kind in text.split(","))
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r}: one of {', '.join(KINDS)}")
    return kinds


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 0 to 1,000,000,000")
    return int(text)


def print_matrix(names: Sequence[str], under: Mapping[tuple[str, str], int]) -> None:
    """Print the number of checks of each line under each kind of fault."""
    print(f"{'checks under':<19}" + "".join(f"{name[:8]:>9}" for name in names))
    for kind in sorted({kind for _, kind in under}):
        print(f"{kind:<19}" + "".join(f"{under.get((name, kind), 0):9d}" for name in names))


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 every promise held, 1 a promise broke, 2 bad arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.invariants",
        description="The control loop under injected faults, on a virtual clock.",
    )
    parser.add_argument("--seeds", type=_number, default=100, help="how many (100)")
    parser.add_argument("--first", type=_number, default=1, help="the first of them (1)")
    parser.add_argument("--seed", type=_number, help="this one only, with its faults")
    parser.add_argument(
        "--faults", type=_kinds, default=(), metavar="KIND,...", help="these instead of drawn ones"
    )
    parser.add_argument("--jobs", type=_number, default=1, help="processes (1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write figures there")
    options = parser.parse_args(argv)
    if options.jobs < 1 or options.seeds < 1:
        parser.error("--jobs and --seeds: at least 1")
    seeds = range(options.first, options.first + options.seeds)
    if options.seed is not None:
        seeds = range(options.seed, options.seed + 1)
    checked: Counter[str] = Counter()
    under: Counter[tuple[str, str]] = Counter()
    failed: list[Outcome] = []
    simulated_s = cpu_s = 0.0
    for done, one in enumerate(_outcomes(seeds, options.faults, options.jobs), start=1):
        checked.update(one.checked)
        under.update(one.under)
        simulated_s += one.seconds
        cpu_s += one.cpu_s
        if one.broken:
            failed.append(one)
            again = f"--seed {one.seed}"
            if options.faults:
                again += f' --faults "{",".join(options.faults)}"'
            print(f"seed {one.seed} FAILED; reproduce with {again}", flush=True)
            for line in one.broken:
                print(f"  {line}")
        if one.broken or len(seeds) == 1:
            for fault in one.faults:
                print(f"    {fault}")
        if done % 25 == 0 and sys.stderr.isatty():
            print(f"{done} of {len(seeds)} seeds, {len(failed)} failed", file=sys.stderr)
    print(f"{len(seeds)} seeds, {simulated_s / 3600:.1f} simulated hours, {cpu_s:.0f} CPU s")
    print("line   checks  failed seeds")
    names = sorted(checked, key=lambda name: (not name.isdigit(), name.zfill(4)))
    for name in names:
        bad = sum(any(f"line {name} " in one for one in o.broken) for o in failed)
        print(f"{name:>6} {checked[name]:8d}  {bad}")
    print_matrix(names, under)
    if options.json:
        figures = {
            "seeds": len(seeds),
            "first": seeds.start,
            "failed": [o.seed for o in failed],
            "checks": {name: checked[name] for name in names},
            "under": {kind: {name: under[name, kind] for name in names} for kind in sorted(KINDS)},
            "simulated_h": simulated_s / 3600,
            "cpu_s": cpu_s,
        }
        options.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
