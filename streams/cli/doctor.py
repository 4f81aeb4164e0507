"""`shoal doctor`: report faults of the installation, each with its place and its remedy.

Each check examines one thing and returns a finding. Nothing is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from autoscaler.domain.condition_level import Level
from autoscaler.domain.validation import InvalidValue
from autoscaler.explain.reason_texts import text
from autoscaler.planning.time_limits import contradictions
from streams import text_layout
from streams.broker.broker_reach import BrokerUnreachable, greet, parse_address
from streams.cli.controller_client import add_url, status
from streams.cli.doctor_series import of_series
from streams.cli.finding import Finding
from streams.cli.json_output import show_json
from streams.cli.status import log_fault
from streams.files.model_source import facts_words, uncertain_facts
from streams.files.shoal_yaml import Config, load_config
from streams.files.user_errors import UserError, first_line, without_login
from streams.files.yaml_tree import USUAL_NAME
from streams.plain_text import age_words, several
from streams.ports.metric_servers import Ask
from streams.ports.promql import prometheus
from streams.text_layout import WIDTH, Line
from topics.reason_codes import ReasonCode

_STALE_SUPPLY_S = 1800.0
_LATE_S = 10.0
_MOST_NAME = 24
FILE, DATA, CONTROLLER, MODELS = "File", "Prometheus", "Controller", "Models"


def add_parser(subparsers: Any) -> None:
    """Add `doctor` to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="find faults, and say how to correct each",
        description="Looks at a shoal.yaml (--config) and a running controller and names what is "
        "missing, where, and how to correct it. Nothing is changed.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=Path(USUAL_NAME) if Path(USUAL_NAME).exists() else None,
        metavar="FILE",
        help=f"the shoal.yaml (default ./{USUAL_NAME} if there is one)",
    )
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: no fault; 1: a fault; 2: bad input."""
    found = [*(of_file(args.config) if args.config else ()), *of_controller(args.url)]
    if args.json:
        show_json([asdict(one) for one in found])
    else:
        text_layout.show([], lines(found))
    return 0 if all(one.ok for one in found) else 1


def lines(found: Sequence[Finding]) -> Iterator[Line]:
    """The findings under their headings, then the number of faults."""
    for title in dict.fromkeys(one.section for one in found):
        shown = [one for one in found if one.section == title]
        width = min(_MOST_NAME, max(len(one.what) for one in shown))
        yield Text(title, style="bold")
        yield from (line for one in shown for line in _finding(one, width))
        yield ""
    faults = sum(not one.ok for one in found)
    checks = several(len(found), "check")
    yield f"{checks}, {several(faults, 'fault') if faults else 'no fault'}"


def _finding(one: Finding, width: int) -> Iterator[Line]:
    """A sign, the item in a column of `width`, and its state; the remedy below. A longer item has
    a line of its own.
    """
    sign, style = ("ok", "green") if one.ok else ("FIX", "bold red")
    head = Text(f"  {sign:<3}  ", style=style)
    is_long = len(one.what) > width
    indent = " " * (len(head) + (2 if is_long else width + 2))
    state = _wrap(one.state, indent)
    first = "" if is_long else f"  {state.pop(0).strip()}"
    yield head + Text(f"{one.what.ljust(width)}{first}", style="")
    yield from state
    if one.remedy:
        yield from _wrap(f"{'note' if one.ok else 'remedy'}: {one.remedy}", indent)


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def of_file(path: Path) -> Iterator[Finding]:
    """Check the file, its broker and its Prometheus servers."""
    config = load_config(path)
    yield from _under(FILE, _file(config))
    yield from _under(DATA, _data(config))


def _under(section: str, found: Iterable[Finding]) -> Iterator[Finding]:
    """The findings with their heading."""
    return (replace(one, section=section) for one in found)


def _file(config: Config) -> Iterator[Finding]:
    """Check the declarations and the broker."""
    cluster = config.cluster
    models, pools = several(len(cluster.services), "model"), several(len(cluster.pools), "pool")
    yield Finding(True, str(config.path), f"{models}, {pools}, mode {config.mode}")
    for wrong in contradictions(cluster):
        yield Finding(wrong.harmless, wrong.key, text(wrong.reason))
    for model, name, entry in uncertain_facts(cluster):
        yield Finding(True, f"source of {model}", facts_words(name, entry))
    yield _broker(config)


def _data(config: Config) -> Iterator[Finding]:
    """Check the Prometheus servers and the series of each model."""
    from streams.controller.demand_sources import (
        prometheus_queries,
    )  # Planning imports a compiler, which would delay --help.

    asks: dict[str, Ask] = {}
    for name, server in config.prometheus.items():
        url = without_login(server.url)
        try:
            ask = prometheus(server)
            ask("vector(1)")
            asks[name] = ask
            yield Finding(True, f"prometheus {name}", f"{url} answers")
        except Exception as error:
            yield Finding(
                False,
                f"prometheus {name}",
                f"{url} does not answer ({without_login(first_line(error))})",
                f"correct prometheus.{name} in {config.path}, or start it; until then, demand by"
                " PromQL is unknown",
            )
    try:
        prometheus_queries(config)
    except UserError as error:
        yield Finding(
            False, "prometheus", str(error), f"add prometheus: {{name: URL}} to {config.path}"
        )
    yield from of_series(config, asks)


def _broker(config: Config) -> Finding:
    if not config.kafka:
        return Finding(True, "kafka", "not declared, so an embedded broker is used")
    try:
        address = parse_address(config.kafka)
    except InvalidValue as error:
        said = f"{error.value!r} is not allowed; allowed: {error.allowed}"
        return Finding(False, "kafka", said, f"correct kafka in {config.path}")
    try:
        asyncio.run(greet(address, 3.0))
    except (BrokerUnreachable, ValueError) as error:
        mend = f"correct kafka in {config.path} or the variables named here, or start it"
        return Finding(False, "kafka", str(error), mend)
    return Finding(True, "kafka", f"{address} answers")


def of_controller(url: str) -> Iterator[Finding]:
    """Check a running controller, the age of its data and its models."""
    try:
        found = status(url)
    except UserError as error:
        mend = "start one with shoal controller --config FILE, or name its address with --url"
        yield Finding(False, "controller", str(error), mend, CONTROLLER)
        return
    yield from of_status(found)


def of_status(found: Mapping[str, Any]) -> Iterator[Finding]:
    """The findings from the contents of `/v1/status`."""
    yield from _under(CONTROLLER, _controller(found))
    if found["leads"]:
        yield from _under(MODELS, map(_model, found["models"]))


def _controller(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the controller and the age of its data."""
    who = f"controller {found['controller']}"
    for point in found.get("open", ()):
        yield Finding(False, point["code"], point["said"], point["mend"])
    log = found.get("decision_log", {})  # older controllers do not report it
    if log.get("fault"):
        remedy = "free space there, or name another folder with --record; decisions continue"
        yield Finding(False, "decision log", log_fault(log), remedy)
    if not found["leads"]:
        leader = found["leader"]
        yield Finding(
            bool(leader),
            who,
            f"stands by; {leader} leads" if leader else "stands by, and no leader is known",
            "" if leader else "start another controller, or see the log of this one",
        )
        return
    late = found["tick_age_s"] > _LATE_S
    yield Finding(
        not late,
        who,
        f"leads; last decision {age_words(found['tick_age_s'])} ago",
        "see its log, then restart it; instances keep serving meanwhile" if late else "",
    )
    for name, words in found["held"].items():
        scope, kind = name.rsplit("/", 1)
        if kind in ("pause", "release"):
            undo = "resume" if kind == "pause" else "adopt"
            target = "--all" if scope == "*" else scope
            yield Finding(True, scope, words, f"shoal {undo} {target} ends it")
        elif kind == ReasonCode.DRAIN_TOO_SHORT:
            yield Finding(False, scope, words)
    yield from _releases(found)
    yield from _lag(found)
    yield from _workers(found)
    for model, why in found.get("refused", {}).items():
        said = f"its last declaration cannot be used, so the previous one stays in force: {why}"
        yield Finding(
            False, model, said, "correct its section and declare it again with shoal apply"
        )
    for topic, count in found.get("undeclared", {}).items():
        what = several(count, "record")
        said = f"{what} ignored, because their names are not declared"
        note = "the writer belongs to another fleet, or a name is misspelt" if count else ""
        yield Finding(
            True, topic, said if count else "every record names a declared model or pool", note
        )
    for kind, pools in found["supply_age_s"].items():
        for pool, age_s in pools.items():
            if age_s > _STALE_SUPPLY_S:
                yield Finding(
                    False,
                    f"{kind} {pool}",
                    f"{age_words(age_s)} old",
                    f"start its feed: shoal feed {kind} --from FILE|URL --follow",
                )


def _releases(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Executors of another version of Shoal than the controller's. Neighbouring versions work
    together, so this is no fault."""
    for executor, release in found.get("other_releases", {}).items():
        said = f"runs Shoal {release or 'of unknown version'}, the controller {found['release']}"
        yield Finding(
            True, f"executor {executor}", said, "end the upgrade, or return to one version"
        )


def _lag(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about topics that the controller reads late. Older controllers
    do not report them.
    """
    for topic, lag_ms in found.get("lag_ms", {}).items():
        yield Finding(
            False,
            f"reading {topic}",
            f"{age_words(lag_ms / 1000.0)} behind",
            "give the controller and the broker more CPU, or find the process that writes so much; "
            "until the controller has caught up, it removes nothing",
        )


def _workers(found: Mapping[str, Any]) -> Iterator[Finding]:
    """A finding if window workers are late. Older controllers do not report it."""
    if late_s := found.get("window_workers_late_s"):
        yield Finding(
            False,
            "window workers",
            f"late or absent for {age_words(late_s)}; the controller merges the telemetry itself",
            "start shoal windows, or more of them; without them, start the controller with "
            "--demand telemetry",
        )


def _model(model: Mapping[str, Any]) -> Finding:
    """The verdict of the controller on one model."""
    # Older controllers do not report level and remedy.
    is_fine = model.get("level", Level.OK) not in (Level.AT_RISK, Level.BROKEN)
    return Finding(is_fine, model["model"], model["word"], model.get("remedy", ""))
