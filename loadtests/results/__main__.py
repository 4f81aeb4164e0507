"""Measure results again and write their pages.

usage: python -m loadtests.results [NAME ...] [--list] [--pages] [--sample SECONDS] [--seed N ...]

NAME is an entry, or the first part of the names of several. Without a name, all results are
measured but those of real processes. --list shows all entries. --pages measures nothing. --sample
measures one seed of some cheap results, which change from day to day, and fails if a figure is not
within its tolerance of the record. --seed measures only these seeds and keeps the record's others,
if the code is the same.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from loadtests.results import pages, records
from loadtests.results.entry import Entry
from loadtests.results.registry import ENTRIES


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 a figure is not within its tolerance, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.results")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="show all entries")
    parser.add_argument("--pages", action="store_true", help="only write the pages again")
    parser.add_argument("--sample", type=float, metavar="SECONDS", help="check some cheap results")
    parser.add_argument("--seed", type=int, nargs="+", help="measure only these seeds")
    args = parser.parse_args(argv)
    chosen = [one for one in ENTRIES if _is_chosen(one, args.names)]
    unknown = [name for name in args.names if not any(_matches(one, name) for one in ENTRIES)]
    if unknown:
        allowed = ", ".join(one.name for one in ENTRIES)
        parser.error(f"NAME: {', '.join(unknown)}: one of {allowed}")
    if args.list:
        print("\n".join(map(_line, chosen)))
    elif args.sample is not None:
        return _check(_sample(args.sample))
    else:
        for entry in () if args.pages else chosen:
            records.write(_measured(entry, args.seed))
            print(_line(entry), flush=True)
        for line in pages.write_pages():
            print(line)
    return 0


def _matches(entry: Entry, name: str) -> bool:
    return entry.name == name or entry.name.startswith(f"{name}-")


def _is_chosen(entry: Entry, names: Sequence[str]) -> bool:
    return any(_matches(entry, name) for name in names) if names else not entry.real


def _measured(entry: Entry, seeds: Sequence[int] | None) -> records.Record:
    """The record of a new measurement. seeds: None for all."""
    if seeds is None:
        return records.measured(entry, entry.seeds)
    before = records.read(entry.name)
    new = records.measured(entry, tuple(seed for seed in entry.seeds if seed in seeds))
    kept = before.runs if before is not None and before.code == new.code else ()
    runs = {run.seed: run for run in (*kept, *new.runs)}
    return replace(new, runs=tuple(runs[seed] for seed in sorted(runs)))


def _line(entry: Entry) -> str:
    record = records.read(entry.name)
    if record is None:
        return f"{entry.name:24} no record"
    state = "current" if records.is_current(entry, record) else "older than the code"
    return f"{entry.name:24} {record.date} {record.commit} {record.cpu_s:8.1f} CPU s, {state}"


def _sample(seconds: float) -> list[tuple[Entry, int]]:
    """Entries with one seed each that took at most `seconds` together; other ones every day."""
    day = datetime.now(UTC).toordinal()
    cheap = [one for one in ENTRIES if not one.real and records.read(one.name)]
    turn = day % max(1, len(cheap))
    found, left = [], seconds
    for entry in (*cheap[turn:], *cheap[:turn]):
        record = records.read(entry.name)
        assert record is not None
        run = record.runs[day % len(record.runs)]
        if run.cpu_s <= left:
            found.append((entry, run.seed))
            left -= run.cpu_s
    return found


def _check(chosen: Sequence[tuple[Entry, int]]) -> int:
    outside = []
    for entry, seed in chosen:
        record = records.read(entry.name)
        assert record is not None
        begin = time.monotonic()
        again = records.measured(entry, (seed,))
        outside += records.differences(entry, record, again)
        print(f"{entry.name}, seed {seed}: {time.monotonic() - begin:.0f} s", flush=True)
    print("\n".join(outside) or f"{len(chosen)} results are within their tolerances")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
