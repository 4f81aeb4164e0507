"""`shoal replay`: repeat a recorded span of the controller's decisions.

With the recorded declaration, the repeated decisions must equal the recorded ones byte for byte.
With another declaration, both are simulated on one fleet and their decisions are compared
(`autoscaler.simulation.what_if`). The command changes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoscaler.domain.cluster import Cluster, Mode, Policy
from autoscaler.simulation.what_if import RecordedTick, WhatIf, decide_again
from streams.cli import replay_view
from streams.cli.json_output import show_json
from streams.cli.time_arguments import moment_ms
from streams.decision_log.log_folder import default_folder
from streams.decision_log.log_reader import Gap, Segment, read_spans, segments
from streams.decision_log.log_replay import rerun, unwatched
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.health.listen_address import parse_listen
from streams.tools.playback.recorded_run import RunRecorder
from streams.tools.playback.recording_server import ANY_PORT, document, serve

_FOREVER_MS = 1 << 62
_WINDOWS = ("surge_window_s", "local_window_s", "global_window_s")


def add_parser(subparsers: Any) -> None:
    """Add `replay` to the command line."""
    parser = subparsers.add_parser(
        "replay",
        help="run a recorded span of decisions again, also under another policy",
        description="Decides a recorded span again and checks that the decisions are the same, "
        "byte for byte. With --policy: what another shoal.yaml would have decided on the same "
        "demand, and what that would have cost. Nothing is changed.",
    )
    parser.add_argument(
        "--from",
        dest="log",
        type=Path,
        default=default_folder(),
        metavar="FOLDER",
        help="the decision log, a folder or one of its files (default %(default)s)",
    )
    parser.add_argument("--since", metavar="TIME", help="10:32 or 2026-01-31T10:32, UTC")
    parser.add_argument("--until", metavar="TIME", help="as --since (default: the end of the log)")
    parser.add_argument(
        "--controller", metavar="ID", help="which controller, if several wrote to the folder"
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="a shoal.yaml to compare with the recorded one"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--serve", nargs="?", const=ANY_PORT, metavar="HOST:PORT",
        help="show the span in the console with a time slider, until Ctrl-C (default %(const)s)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: same decisions, or a comparison; 1: the decisions differ; 2: bad input."""
    if args.serve:
        parse_listen(args.serve, "--serve")
    chosen = _chosen(segments(args.log), args.controller)
    last_ms = chosen[-1].began_ms
    since_ms = moment_ms("--since", args.since, last_ms) if args.since else 0
    until_ms = moment_ms("--until", args.until, last_ms) if args.until else _FOREVER_MS
    if until_ms <= since_ms:
        raise UserError(f"--until {args.until}: not after --since {args.since}")
    chosen = _covering(chosen, since_ms, until_ms)
    recorders = [RunRecorder("recorded")]
    if args.policy is None:
        watch = recorders[0].tick if args.serve else unwatched
        found = rerun(chosen, since_ms, until_ms, watch)
        if not found.ticks:
            raise _nothing(args.log, found.gaps)
        if args.json:
            show_json(replay_view.rerun_facts(found))
        else:
            replay_view.show_rerun(found)
        _serve(args, recorders)
        return 0 if found.same else 1
    gaps: list[Gap] = []
    first = next(read_spans(chosen, gaps), None)
    if first is None:
        raise _nothing(args.log, gaps)
    start = first.start
    cautious = any(service.cautious for service in start.cluster.services)
    declared = load_config(args.policy, Mode.ACT, cautious=cautious).cluster
    _refuse_windows(args.policy, declared, start.cluster)
    runs: list[WhatIf] = []
    recorders = [
        RunRecorder("as declared", "decided again; latencies as recorded"),
        RunRecorder(args.policy.name, "decided again; latencies are not known", latencies=False),
    ]
    for cluster, recorder in zip((None, declared), recorders, strict=True):
        _say(f"deciding again: {'as recorded' if cluster is None else args.policy}")
        gaps = []
        recorded = _recorded(chosen, since_ms, until_ms, gaps)
        watch = recorder.tick if args.serve else unwatched
        runs.append(decide_again(start.state, recorded, cluster, watch=watch))
    if not runs[0].ticks:
        raise _nothing(args.log, gaps)
    gaps = [gap for gap in gaps if gap.concerns(since_ms, until_ms)]
    facts = replay_view.compared(start.cluster, declared, runs[0], runs[1], gaps)
    if args.json:
        show_json(facts)
    else:
        replay_view.show_compared(facts, str(args.policy))
    _serve(args, recorders)
    return 0


def _serve(args: argparse.Namespace, recorders: list[RunRecorder]) -> None:
    """Serve the recorded runs if --serve is given."""
    cluster = recorders[-1].cluster
    if not args.serve or cluster is None:
        return
    runs = [recorder.as_json() for recorder in recorders]
    first_ms, last_ms = recorders[0].first_ms, recorders[0].last_ms
    found = document(str(args.log), cluster, runs, first_ms, last_ms)
    serve(args.serve, found, lambda url: print(f"console: {url}/ (Ctrl-C ends)", flush=True))


def _chosen(found: list[Segment], controller: str | None) -> list[Segment]:
    """The segments of one controller, because controllers have different inputs.

    UserError: `found` has several controllers and --controller is not given or unknown.
    """
    names = sorted({segment.controller for segment in found})
    if controller is None and len(names) > 1:
        raise UserError(f"several controllers wrote here: --controller {' or '.join(names)}")
    wanted = controller or names[0]
    if wanted not in names:
        raise UserError(f"--controller {wanted}: not here; allowed: {' or '.join(names)}")
    return [segment for segment in found if segment.controller == wanted]


def _covering(found: list[Segment], since_ms: int, until_ms: int) -> list[Segment]:
    """The segments that cover the span, from the last segment that starts before the span."""
    before = [segment for segment in found if segment.began_ms <= since_ms]
    first = before[-1].began_ms if before else 0
    inside = [segment for segment in found if first <= segment.began_ms <= until_ms]
    return inside or found[-1:]


def _nothing(log: Path, gaps: list[Gap]) -> UserError:
    """The error if there is no tick to replay, with the first damage as its reason."""
    if gaps:
        return UserError(replay_view.gap_words(gaps[0]))
    return UserError(f"{log}: nothing was recorded between --since and --until")


def _recorded(
    found: list[Segment], since_ms: int, until_ms: int, gaps: list[Gap]
) -> Iterator[RecordedTick]:
    for span in read_spans(found, gaps):
        for tick in span.ticks:
            if tick.now_ms <= until_ms:
                counted = tick.now_ms >= since_ms
                yield RecordedTick(tick.now_ms, tick.cluster, tick.observation, counted)


def _refuse_windows(path: Path, declared: Cluster, then: Cluster) -> None:
    """UserError if the demand windows differ, because the log has demand only for the recorded
    windows.
    """
    for name in _WINDOWS:
        was, is_ = getattr(then.policy, name), getattr(declared.policy, name)
        if was != is_:
            key = name.removesuffix("_s")
            raise UserError(
                f"{path}: policy.{key}: {is_}s is not allowed; allowed: {was}s, as recorded "
                f"(default {getattr(Policy(), name)}s)"
            )


def _say(words: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{words}\n")
