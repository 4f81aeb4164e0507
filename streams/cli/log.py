"""`shoal log verify`: check that a decision log is complete and unchanged."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streams.cli.json_output import show_json
from streams.cli.time_arguments import clock_words, moment_words
from streams.decision_log.log_folder import default_folder
from streams.decision_log.log_reader import segments
from streams.decision_log.log_verify import ChainReport, Note, verify
from streams.files.user_errors import UserError
from streams.plain_text import several
from topics.edge.key_files import read_keys
from topics.keys import CLUSTER_KEY

_MOST_LINES = 20
_HEAD = re.compile(r"(\d{1,18}):([0-9a-f]{64})\Z")


def add_parser(subparsers: Any) -> None:
    """Add `log` to the command line."""
    parser = subparsers.add_parser("log", help="check a decision log")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "verify",
        help="check that a decision log is complete and unchanged",
        description="Checks the chain of hashes over all records, and the signatures of its heads "
        f"with the cluster's key (${CLUSTER_KEY} or ${CLUSTER_KEY}_FILE). Names the first broken "
        "place.",
    )
    check.add_argument(
        "folder", nargs="?", type=Path, default=default_folder(), metavar="FOLDER",
        help="the decision log (default %(default)s)",
    )  # fmt: skip
    check.add_argument(
        "--head", metavar="NUMBER:HASH",
        help="a record that the log must contain, from the controller's log or status: shows "
        "whether the end of the log was removed",
    )  # fmt: skip
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: intact; 1: damaged, changed, or not signed although a key is at hand; 2: bad
    input."""
    head: tuple[int, str] | None = None
    if args.head is not None:
        found = _HEAD.match(args.head)
        if found is None:
            raise UserError(f"--head {args.head}: allowed: NUMBER:HASH, the hash of 64 digits")
        head = int(found[1]), found[2]
    segments(args.folder)
    keys = read_keys()
    reports = verify(args.folder, keys, head)
    if args.json:
        show_json([report_facts(one) for one in reports])
    else:
        for report in reports:
            print("\n".join(lines(report, bool(keys.cluster))))
    return 0 if all(is_intact(one, bool(keys.cluster)) for one in reports) else 1


def is_intact(report: ChainReport, has_key: bool) -> bool:
    """Whether the log is intact, and signed if a key is at hand."""
    return not report.faults and report.records > 0 and not (has_key and report.unsigned)


def report_facts(report: ChainReport) -> dict[str, Any]:
    """The report as JSON."""
    found = dataclasses.asdict(report)
    for name in ("faults", "notes"):
        found[name] = [{**one, "path": str(one["path"])} for one in found[name]]
    return found


def lines(report: ChainReport, has_key: bool) -> Iterator[str]:
    """The report as text."""
    span = f"{moment_words(report.first_ms)} to {clock_words(report.last_ms)} UTC"
    words = f"{several(report.records, 'record')} in {several(report.segments, 'segment')}, {span}"
    state = "intact" if not report.faults and report.records else "NOT INTACT"
    yield f"{report.controller}: {state}: {words if report.records else 'no record can be read'}"
    if report.records:
        yield f"  head: {report.last}:{report.hash}"
        yield f"  {_signatures(report, has_key)}"
    if report.lost:
        yield f"  {several(report.lost, 'tick')} could not be written by the controller"
    if report.faults:
        yield "  first broken place:"
    for title, notes in (("", report.faults), ("note: ", report.notes)):
        for note in notes[:_MOST_LINES]:
            yield f"  {title}{_words(note)}"
        if len(notes) > _MOST_LINES:
            yield f"  {title}{len(notes) - _MOST_LINES} more in --json"


def _words(note: Note) -> str:
    after = f" (after {clock_words(note.at_ms)})" if note.at_ms else ""
    return f"{note.path}: byte {note.offset}: {note.text}{after}"


def _signatures(report: ChainReport, has_key: bool) -> str:
    heads = report.signed + report.unsigned + report.wrong
    if not report.signed and not report.wrong:
        return f"not signed: none of {several(heads, 'head')} has a signature"
    if not has_key:
        return f"{report.signed} of {several(heads, 'head')} signed; not checked, no {CLUSTER_KEY}"
    said = f"{report.signed} of {several(heads, 'head')} signed with this cluster's key"
    return said + (f", {report.unsigned} not signed" if report.unsigned else "")
