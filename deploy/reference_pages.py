"""Write the reference pages of commands, topics and metrics from the code.

python deploy/reference_pages.py            # write them
python deploy/reference_pages.py --check    # exit 1 if one of them is out of date
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
sys.path.insert(0, str(ROOT))

from deploy.written_files import write_or_check  # noqa: E402  the path comes first
from executors.gateway.gateway_metrics import GatewayMetrics  # noqa: E402
from executors.node.executor_metrics import Metrics as ExecutorMetrics  # noqa: E402
from streams.cli.main import COMMANDS  # noqa: E402
from streams.health.metric_names import METRICS  # noqa: E402
from topics.keys import SIGNER  # noqa: E402
from topics.name_life import KEYS  # noqa: E402
from topics.topic_table import DAY_MS, TABLE, Cleanup  # noqa: E402

_WRITTEN = "This page is written by `python deploy/reference_pages.py` from the code.\n"


def commands() -> str:
    """The page of all commands and their options."""
    parser = argparse.ArgumentParser(prog="shoal")
    subparsers = parser.add_subparsers()
    for module in dict.fromkeys(module for module, _ in COMMANDS.values()):
        importlib.import_module(module).add_parser(subparsers)
    parts = [
        f"# Commands\n\n{_WRITTEN}\nExit codes: 0 success, 1 internal error or failed check, 2 bad "
        "input, 3 demand left unserved (`plan`, `diff`), 130 after Ctrl-C, 143 after SIGTERM.\n"
    ]
    for name in COMMANDS:
        parts += _command(f"shoal {name}", subparsers.choices[name], 2)
    return "\n".join(parts)


def _command(name: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    if parser.description:
        yield f"{_plain(parser.description)}\n"
    nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    shown = [a for a in parser._actions if a not in nested and a.help != argparse.SUPPRESS]
    rows = [_option(action, parser) for action in shown if action.dest != "help"]
    if rows:
        yield "| option | meaning |"
        yield "| --- | --- |"
        yield from rows
        yield ""
    for action in nested:
        for child, inner in action.choices.items():
            yield from _command(f"{name} {child}", inner, level + 1)


def _option(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    names = ", ".join(action.option_strings)
    value = ""
    if action.nargs != 0:
        choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        value = metavar or choices or action.dest.upper()
    text = action.help or ""
    if "%" in text:
        text = parser._get_formatter()._expand_help(action)
    required = " (required)" if action.required and action.option_strings else ""
    return f"| `{' '.join(filter(None, (names, value)))}`{required} | {_plain(text)} |"


def topic_page() -> str:
    """The page of all topics and their records."""
    lines = [f"# Topics and records\n\n{_WRITTEN}"]
    lines.append(
        "Names on a broker begin with `shoal.` (`--prefix`). Records are JSON, and readers ignore "
        "unknown fields. Times are ms since the epoch in domain time, which passes faster with a "
        "`--speed` above 1. The record is signed with the key of its signer "
        "([threat model](../explanation/threat-model.md)).\n"
    )
    lines += ["| topic | record | partitions | kept | signer |", "| --- | --- | --- | --- | --- |"]
    for topic in TABLE:
        days = topic.retention_ms // DAY_MS
        kept = "latest of each key" if topic.cleanup is Cleanup.COMPACT else f"{days} days"
        signer = SIGNER.get(topic.name)
        lines.append(
            f"| `{topic.name}` | [{topic.record.__name__}](#{topic.record.__name__.lower()}) "
            f"| {topic.partitions} | {kept} | {signer.value if signer else 'none'} |"
        )
    lines.append("\n## Keys without an owner\n")
    lines.append(
        "The leader deletes a key of a compacted topic that no owner has, after a time without a "
        "record of this key ([names](invariants.md#names)).\n"
    )
    lines += ["| topic | owner | seconds |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {rule.owner} | {rule.silent_s:g} |" for name, rule in KEYS.items()]
    lines.append("")
    for record in dict.fromkeys(topic.record for topic in TABLE):
        lines += _record(record)
    return "\n".join(lines)


def _record(record: type[Any]) -> Iterator[str]:
    fields = dataclasses.fields(record)
    intro, meanings = _described(record.__doc__ or "", {field.name for field in fields})
    yield f"## {record.__name__}\n"
    yield from (f"{_plain(paragraph)}\n" for paragraph in intro)
    yield "| field | type | meaning |"
    yield "| --- | --- | --- |"
    for field in fields:
        optional = field.default is not dataclasses.MISSING
        optional |= field.default_factory is not dataclasses.MISSING
        kind = str(field.type).replace("|", "\\|")
        about = _plain(meanings.get(field.name, ""))
        yield f"| `{field.name}` | `{kind}`{', optional' if optional else ''} | {about} |"
    yield ""


def _described(text: str, names: set[str]) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of a docstring without the parts "field: meaning.", and these meanings."""
    intro: list[str] = []
    meanings: dict[str, str] = {}
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        rest = []
        for part in re.split(r"(?<=[.\"]) (?=\w+(?:, \w+)*: )", " ".join(paragraph.split())):
            listed, colon, meaning = part.partition(": ")
            if colon and set(listed.split(", ")) <= names:
                meanings |= dict.fromkeys(listed.split(", "), meaning)
            else:
                rest.append(part)
        if rest:
            intro.append(" ".join(rest))
    return intro, meanings


_METRIC_HEAD = ("| metric | kind | labels | meaning |", "| --- | --- | --- | --- |")


def metric_page() -> str:
    """The page of all metrics of controllers, gateways and executors."""
    lines = [
        f"# Metrics\n\n{_WRITTEN}\nEach process serves its metrics at "
        "`/metrics`. Domain seconds pass faster with a `--speed` above 1.\n"
    ]
    lines += ["## Controller\n", *_METRIC_HEAD]
    for metric in METRICS:
        labels = ", ".join(metric.labels) or "-"
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |")
    lines += ["", "## Gateway\n"]
    lines += [
        "Further gauges count clients that exceeded a limit (`shoal:gateway_clients_cut`, `_late`, "
        "`_refused`), failures of the scorer by reason (`shoal:gateway_scorer_...`), and instances "
        "with a known load (`shoal:gateway_loads_known`).\n"
    ]
    lines += [*_METRIC_HEAD, *_collected(GatewayMetrics()._registry)]
    lines += ["", "## Executor\n", *_METRIC_HEAD, *_collected(ExecutorMetrics().registry)]
    return "\n".join(lines) + "\n"


def _collected(registry: Any) -> Iterator[str]:
    """The rows of the metrics of a registry of prometheus_client."""
    for collector in registry._collector_to_names:
        kind, labels = collector._type, ", ".join(collector._labelnames) or "-"
        name = collector._name + ("_total" if kind == "counter" else "")
        yield f"| `{name}` | {kind} | {labels} | {collector._documentation} |"


PAGES = {"cli.md": commands, "topics.md": topic_page, "metrics.md": metric_page}


def _plain(text: str) -> str:
    """`text` as one line that is safe in a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 if `--check` finds an outdated file."""
    wanted = {FOLDER / name: make() for name, make in PAGES.items()}
    return write_or_check(wanted, "deploy/reference_pages.py", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
