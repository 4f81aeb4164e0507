"""`shoal apply`: declare the models of a file to a running controller.

The records of `services` override the controller's own file. Declarations are compared by meaning,
not by text. A model is withdrawn if an earlier `shoal apply` declared it and the file no longer has
it. `shoal apply` ignores the file's pools, engines, defaults and policy: the controller keeps those
of its own file. A withdrawal is a record; the controller deletes it once nothing uses the model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoscaler.domain.validation import InvalidValue
from streams.cli.config_option import add_config
from streams.cli.publish import Broker, add_broker
from streams.files.quality_section import stands_for_models
from streams.files.shoal_yaml import Config, load_config, parse_service
from streams.files.user_errors import UserError
from streams.files.yaml_tree import read
from topics.codec import decode
from topics.records import DeclaredService
from topics.topic_table import NAMES, SERVICES

_MOST = 1_000_000  # records per partition; a topic has fewer


def add_parser(subparsers: Any) -> None:
    """Add `apply` to the command line."""
    parser = subparsers.add_parser(
        "apply",
        help="declare the models of a shoal.yaml to a running controller",
        description="Publishes each changed model of the file, withdraws models that it declared "
        "before and that are no longer in the file, and prints what it did.",
    )
    add_config(parser, str)
    add_broker(parser, "kafka in the file, else that of the controller at --url")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Declare the models. UserError: bad input, a broker that does not answer, or unusable
    topics."""
    config = load_config(args.config)
    wanted = declared_texts(Path(args.config))
    changes = _apply(config, wanted, Broker.of(args, config.kafka))
    for model, what in changes.items():
        print(f"{model}: {what}")
    for route in config.cluster.routes:
        print(f"{route.name}: left out; the controller reads it from its own file")
    return 0


def declared_texts(path: Path) -> dict[str, str]:
    """Each model's section of a valid file, as YAML text.

    Services that route over several models are left out, because their scores are in a file on the
    controller's host.
    """
    root, _ = read(path)
    models = root.section("models", required=True)
    if models is None:
        return {}
    return {name: part.as_yaml() for name, part in models.children() if not stands_for_models(part)}


def changes_of(
    config: Config, wanted: Mapping[str, str], known: Mapping[str, str]
) -> dict[str, str]:
    """The change of each model: added, changed, unchanged or withdrawn.

    wanted: the YAML text of each model in the file. known: its text in the topic, "" if the record
    is unreadable.
    """
    found = {}
    for model, text in wanted.items():
        if model not in known:
            found[model] = "added"
        elif _means_the_same(config, model, text, known[model]):
            found[model] = "unchanged"
        else:
            found[model] = "changed"
    return found | {model: "withdrawn" for model in known if model not in wanted}


def _means_the_same(config: Config, model: str, text: str, before: str) -> bool:
    try:
        return parse_service(config, model, before) == parse_service(config, model, text)
    except (UserError, InvalidValue):
        return False


def _apply(config: Config, wanted: Mapping[str, str], broker: Broker) -> dict[str, str]:
    known: dict[str, str] = {}
    version = max((record.version for record in broker.last(NAMES)), default=0)
    for key, value in broker.values(SERVICES, _MOST):
        model = (key or b"").decode(errors="replace")
        record = _record(value)
        version = max(version, record.version if record is not None else 0)
        if value is None or (record is not None and record.withdrawn):
            known.pop(model, None)
        else:
            known[model] = record.declared if record is not None else ""
    # The time makes versions of operators differ that do not read each other's records.
    version = max(version + 1, time.time_ns() // 1_000_000)
    changes = changes_of(config, wanted, known)
    broker.publish(
        DeclaredService(model, wanted.get(model, ""), broker.now_ms, version, what == "withdrawn")
        for model, what in changes.items()
        if what != "unchanged"
    )
    return changes


def _record(value: bytes | None) -> DeclaredService | None:
    """The declaration or withdrawal in `value`; None if it is deleted or unreadable."""
    try:
        found: DeclaredService = decode(SERVICES.name, value or b"")
    except InvalidValue:
        return None
    return found
