"""What goes over the pipe between the controller and its solver: one JSON object per line.

Owns the form of questions and answers. Both ends are the same version of Shoal on one machine,
so there are no versions here; what does not fit is an error of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from autoscaler.controller_state import Refinement
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.effects import RefinementRequested, ScaleOutTablesRequested
from autoscaler.planning.tables import Entry, ModelTable
from topics.codec import read_value

Question = ScaleOutTablesRequested | RefinementRequested
Answer = tuple[ModelTable, ...] | Refinement


@dataclass(frozen=True, slots=True)
class _Tables:
    lengths: tuple[tuple[str, Lengths], ...]


@dataclass(frozen=True, slots=True)
class _Refine:
    request: int
    at_ms: int
    demands: tuple[Demand, ...]
    running: tuple[tuple[str, str, int], ...]
    obtainable: tuple[tuple[str, int], ...]
    scarce: tuple[str, ...]
    scope: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Table:
    model: str
    lengths: Lengths
    combos: tuple[Combo, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class _Answers:
    tables: tuple[_Table, ...]


@dataclass(frozen=True, slots=True)
class _Prices:
    usd_per_node_h: dict[str, float]


def ask(number: int, question: Question, cluster: Cluster) -> bytes:
    """A line that asks `question`. cluster: its pools' prices go along, as they are now."""
    kind = "tables" if isinstance(question, ScaleOutTablesRequested) else "refine"
    prices = {pool.id: pool.price_usd_per_h for pool in cluster.pools}
    line = {"number": number, "kind": kind, "body": question, "prices": prices}
    return orjson.dumps(line) + b"\n"


def asked(line: bytes) -> tuple[int, Question, dict[str, float]]:
    """(number, question, USD per node-hour by pool) of a line that `ask` made."""
    said = orjson.loads(line)
    prices = dict[str, float](
        read_value(_Prices, {"usd_per_node_h": said["prices"]}).usd_per_node_h
    )
    question: Question
    if said["kind"] == "tables":
        question = ScaleOutTablesRequested(read_value(_Tables, said["body"]).lengths)
    else:
        body = read_value(_Refine, said["body"])
        question = RefinementRequested(
            body.request,
            body.at_ms,
            body.demands,
            body.running,
            body.obtainable,
            body.scarce,
            body.scope,
        )
    return int(said["number"]), question, prices


def answer(number: int, found: Answer) -> bytes:
    """A line that answers question `number`."""
    body: Any
    if isinstance(found, Refinement):
        body = {"refinement": found}
    else:
        body = {
            "tables": [
                _Table(table.model, table.lengths, table.combos, table.entries) for table in found
            ]
        }
    return orjson.dumps({"number": number, **body}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"


def failure(number: int, why: str) -> bytes:
    """A line that says that question `number` could not be answered."""
    return orjson.dumps({"number": number, "error": why}) + b"\n"


def answered(line: bytes) -> tuple[int, Answer | str]:
    """(number, answer) of a line that `answer` or `failure` (then a text) made."""
    said = orjson.loads(line)
    number = int(said["number"])
    if "error" in said:
        return number, str(said["error"])
    if "refinement" in said:
        found: Refinement = read_value(Refinement, said["refinement"])
        return number, found
    tables = read_value(_Answers, said).tables
    return number, tuple(
        ModelTable(
            table.model,
            table.lengths,
            table.combos,
            table.entries,
            {combo.id: combo for combo in table.combos},
        )
        for table in tables
    )
