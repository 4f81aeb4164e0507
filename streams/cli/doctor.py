"""`shoal doctor`: report faults of the installation, each with its place and its remedy.

Each check examines one thing and returns a finding. Nothing is changed.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoscaler.domain.validation import InvalidValue
from autoscaler.explain.reason_texts import text
from autoscaler.planning.time_limits import contradictions
from streams.broker.broker_reach import BrokerUnreachable, greet, parse_address
from streams.cli.controller_client import add_url, status
from streams.cli.doctor_series import of_series
from streams.cli.finding import Finding
from streams.cli.json_output import show_json
from streams.files.model_source import facts_words, uncertain_facts
from streams.files.shoal_yaml import Config, load_config
from streams.files.user_errors import UserError, first_line, without_login
from streams.plain_text import age_words, several
from streams.ports.promql import Ask, prometheus
from topics.reason_codes import ReasonCode

_STALE_TELEMETRY_S = 30.0
_STALE_SUPPLY_S = 1800.0
_LATE_S = 10.0


def add_parser(subparsers: Any) -> None:
    """Add `doctor` to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is missing, where, and how to mend it",
        description="Looks at a shoal.yaml (--config) and a running controller and names what is "
        "missing, where, and how to mend it. Nothing is changed.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the shoal.yaml")
    add_url(parser)
    parser.add_argument("--json", action="store_true", help="the same facts under stable names")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: no fault; 1: a fault; 2: bad input."""
    found = [*(of_file(args.config) if args.config else ()), *of_controller(args.url)]
    if args.json:
        show_json([asdict(one) for one in found])
    else:
        for one in found:
            print(f"{'ok  ' if one.ok else 'MEND'}  {one.what}: {one.said}")
            if one.mend:
                print(f"      {one.mend}")
    return 0 if all(one.ok for one in found) else 1


def of_file(path: Path) -> Iterator[Finding]:
    """Check the file, its broker and its Prometheus servers."""
    from streams.controller.demand_sources import (
        prometheus_queries,
    )  # Planning imports a compiler, which would delay --help.

    asks: dict[str, Ask] = {}
    config = load_config(path)
    cluster = config.cluster
    models, pools = several(len(cluster.services), "model"), several(len(cluster.pools), "pool")
    said = f"{models}, {pools}, mode {config.mode}"
    yield Finding(True, str(path), said)
    for wrong in contradictions(cluster):
        yield Finding(wrong.harmless, wrong.key, text(wrong.reason))
    for model, name, entry in uncertain_facts(cluster):
        yield Finding(True, f"source of {model}", facts_words(name, entry))
    yield _broker(config)
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
                f"{url} cannot be asked ({without_login(first_line(error))})",
                f"mend prometheus.{name} in {path}, or start it: demand by PromQL is no data now",
            )
    try:
        prometheus_queries(config)
    except UserError as error:
        yield Finding(False, "prometheus", str(error), f"add prometheus: {{name: URL}} to {path}")
    yield from of_series(config, asks)


def _broker(config: Config) -> Finding:
    if not config.kafka:
        return Finding(True, "kafka", "none named: an embedded broker, for one machine")
    try:
        address = parse_address(config.kafka)
    except InvalidValue as error:
        said = f"{error.value!r} is not allowed; allowed: {error.allowed}"
        return Finding(False, "kafka", said, f"mend kafka in {config.path}")
    try:
        asyncio.run(greet(address, 3.0))
    except (BrokerUnreachable, ValueError) as error:
        mend = f"mend kafka in {config.path} or the variables named here, or start it"
        return Finding(False, "kafka", str(error), mend)
    return Finding(True, "kafka", f"{address} answers")


def of_controller(url: str) -> Iterator[Finding]:
    """Check a running controller, the age of its data and its models."""
    try:
        found = status(url)
    except UserError as error:
        mend = "start one: shoal controller --config FILE (or name another with --url)"
        yield Finding(False, "controller", str(error), mend)
        return
    yield from of_status(found)


def of_status(found: Mapping[str, Any]) -> Iterator[Finding]:
    """The findings from the contents of `/v1/status`."""
    who = f"controller {found['controller']}"
    for point in found.get("open", ()):
        yield Finding(False, point["code"], point["said"], point["mend"])
    if not found["leads"]:
        leader = found["leader"]
        yield Finding(
            bool(leader),
            who,
            f"stands by for {leader}" if leader else "stands by, and no leader is known",
            "" if leader else "is another controller running? else see this one's log",
        )
        return
    late = found["tick_age_s"] > _LATE_S
    yield Finding(
        not late,
        who,
        f"leads, decided {age_words(found['tick_age_s'])} ago",
        "it hangs or is stopped: see its log, restart it; instances go on" if late else "",
    )
    for name, words in found["held"].items():
        scope, kind = name.rsplit("/", 1)
        if kind in ("pause", "release"):
            undo = "resume" if kind == "pause" else "adopt"
            target = "--all" if scope == "*" else scope
            yield Finding(True, scope, words, f"shoal {undo} {target} ends it")
        elif kind == ReasonCode.DRAIN_TOO_SHORT:
            yield Finding(False, scope, words)
    yield from _lag(found)
    for model, why in found.get("refused", {}).items():
        said = f"its last declaration cannot be used, the one before stands: {why}"
        yield Finding(False, model, said, "mend its section and declare it again: shoal apply")
    for topic, count in found.get("undeclared", {}).items():
        what = several(count, "record")
        said = f"{what} left out, of names that are not declared"
        yield Finding(True, topic, said, "is its writer of another fleet, or its name misspelt?")
    for kind, pools in found["supply_age_s"].items():
        for pool, age_s in pools.items():
            if age_s > _STALE_SUPPLY_S:
                yield Finding(
                    False,
                    f"{kind} {pool}",
                    f"{age_words(age_s)} old",
                    f"is its feed running? shoal feed {kind} --from FILE|URL --follow",
                )
    for model in found["models"]:
        yield _model(model)


def _lag(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about topics that the controller reads late. Older controllers
    do not report them.
    """
    for topic, lag_ms in found.get("lag_ms", {}).items():
        yield Finding(
            False,
            f"reading {topic}",
            f"{age_words(lag_ms / 1000.0)} behind",
            "until it has caught up no silence counts and nothing is scaled in; give the "
            "controller and the broker more CPU, or find who writes so much to the topic",
        )


def _model(model: Mapping[str, Any]) -> Finding:
    name, age_s = model["model"], model["telemetry_age_s"]
    if age_s is None or age_s > _STALE_TELEMETRY_S:
        said = "no telemetry yet" if age_s is None else f"no telemetry for {age_words(age_s)}"
        return Finding(
            False,
            name,
            f"{said}; it is planned by its declared workload, and not scaled in",
            "send its requests through the gateway, or name a `demand` query in shoal.yaml (shoal "
            "doctor --config FILE shows the answers to it)",
        )
    if model["proposal"]:
        number = model["proposal"]
        mend = f"shoal approve {number}, or shoal reject {number} --why ..."
        return Finding(True, name, f"proposal #{number} waits", mend)
    if model.get("short", False):  # Older controllers do not report "short".
        mend = f"shoal explain {name} names what would help"
        return Finding(False, name, model["word"], mend)
    return Finding(True, name, model["word"])
