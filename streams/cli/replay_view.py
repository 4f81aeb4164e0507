"""The result of `shoal replay`, as facts under stable keys and as text of at most 100 columns.

Two runs are compared by cost, by requests above capacity, and by decisions that only one of them
made.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.explain.combo_labels import change_words
from autoscaler.simulation.what_if import ModelOutcome, WhatIf
from streams.cli.time_arguments import clock_words, moment_words
from streams.decision_log.log_reader import Gap
from streams.decision_log.log_replay import Rerun
from streams.plain_text import age_words, clipped, several
from topics.decisions import Decision

_WIDTH = 100
_MOST_LINES = 40
_MOST_GAPS = 10
_CLOSE_MS = 15_000
_UNIT = re.compile(r"_usd_per_h\Z|(?<!per)_s\Z")
_HIDDEN = ("architecture", "lengths", "content_hash")


def rerun_facts(found: Rerun) -> dict[str, Any]:
    """The comparison of a recorded span with its repetition."""
    return {
        "same": found.same,
        "ticks": found.ticks,
        "first_ms": found.first_ms,
        "last_ms": found.last_ms,
        "decisions": found.decisions,
        "ticks_with_effects": found.effects,
        "recorded_by": sorted(found.versions),
        "differs": found.differs,
        "gaps": [gap_facts(gap) for gap in found.gaps],
    }


def gap_facts(gap: Gap) -> dict[str, Any]:
    """A gap in the log."""
    return {**dataclasses.asdict(gap), "path": str(gap.path)}


def gap_words(gap: Gap) -> str:
    """Text about a gap: its place, its cause, and the ticks that are missing."""
    count = "records after" if gap.records is None else f"{several(gap.records, 'record')} from"
    since = f"{count} {clock_words(gap.from_ms)}" if gap.from_ms else "records"
    until = f" to {clock_words(gap.to_ms)}" if gap.to_ms else ""
    return f"{gap.path}: byte {gap.offset}: {gap.why}; {since}{until} are missing"


def _show_gaps(gaps: Sequence[Gap]) -> None:
    for gap in gaps[:_MOST_GAPS]:
        print(f"gap: {gap_words(gap)}; continued from the next recorded state")
    if len(gaps) > _MOST_GAPS:
        print(f"gap: {len(gaps) - _MOST_GAPS} more in --json")


def show_rerun(found: Rerun) -> None:
    """Print `found`, the comparison of a recorded span with its repetition."""
    span = f"{moment_words(found.first_ms)} to {clock_words(found.last_ms)} UTC"
    what = f"{found.ticks} ticks, {found.decisions} decisions"
    _show_gaps(found.gaps)
    if found.same:
        print(f"{span}: {what}: the same, byte for byte")
        return
    spans, versions = several(len(found.differs), "span"), ", ".join(sorted(found.versions))
    print(f"{span}: {what}: {spans} differ (recorded by {versions})")
    for one in found.differs[:_MOST_LINES]:
        print(f"at {clock_words(one.now_ms)}")
        for sign, decisions in (("-", one.then), ("+", one.now)):
            for decision in decisions:
                print(clipped(f"  {sign} {_line(decision)}", _WIDTH))
        if one.then == one.now:
            print("  decisions are the same; an assignment, route, plan or request differs")


def compared(
    then: Cluster, now: Cluster, before: WhatIf, after: WhatIf, gaps: Iterable[Gap] = ()
) -> dict[str, Any]:
    """The comparison of two runs of a span.

    The list of decisions includes decisions that changed nothing; the counts do not.
    """
    return {
        "first_ms": before.first_ms,
        "last_ms": before.last_ms,
        "ticks": before.ticks,
        "missing_s": before.missing_s,
        "gaps": [gap_facts(gap) for gap in gaps],
        "changed": list(changes(then, now)),
        "recorded": _run(before),
        "policy": _run(after),
        "decisions": [
            {"in": where, **dataclasses.asdict(decision)}
            for where, decision in side_by_side(before.decisions, after.decisions)
        ],
    }


def _run(found: WhatIf) -> dict[str, Any]:
    total = ModelOutcome()
    for one in found.models.values():
        total.requests += one.requests
        total.short_requests += one.short_requests
    return {
        "usd": found.usd,
        "requests": total.requests,
        "short_requests": total.short_requests,
        "decisions": sum(decision.kind != "hold" for decision in found.decisions),
        "models": {model: dataclasses.asdict(one) for model, one in sorted(found.models.items())},
    }


def changes(then: Cluster, now: Cluster) -> Iterator[str]:
    """The differences of two declarations, one line each: "code: utilization 0.8 -> 0.9"."""
    yield from _fields("policy", then.policy, now.policy)
    for what, old, new in (
        ("pool ", {p.id: p for p in then.pools}, {p.id: p for p in now.pools}),
        ("", {s.model: s for s in then.services}, {s.model: s for s in now.services}),
    ):
        old_by: Mapping[str, Any] = old
        new_by: Mapping[str, Any] = new
        for name in dict.fromkeys((*old_by, *new_by)):
            if name not in new_by:
                yield f"{what}{name}: removed"
            elif name not in old_by:
                yield f"{what}{name}: added"
            else:
                yield from _fields(f"{what}{name}", old_by[name], new_by[name])


def _fields(who: str, old: Any, new: Any) -> Iterator[str]:
    for field in dataclasses.fields(old):
        was, is_ = getattr(old, field.name), getattr(new, field.name)
        if was == is_ or (who != "policy" and field.name == "mode"):
            continue
        name = _UNIT.sub("", field.name)
        if field.name in _HIDDEN or _is_long(was) or _is_long(is_):
            yield f"{who}: {name} changed"
        else:
            yield f"{who}: {name} {_value(was)} -> {_value(is_)}"


def _is_long(value: Any) -> bool:
    """Whether the value is a list of dataclass objects."""
    return isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value)


def _value(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        parts = (f"{f.name} {getattr(value, f.name):g}" for f in dataclasses.fields(value))
        return "(" + ", ".join(parts) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def side_by_side(
    before: Iterable[Decision], after: Iterable[Decision]
) -> Iterator[tuple[str, Decision]]:
    """Decisions in order of time, each with the run that made it: "recorded", "policy" or "both".

    Equal changes of one model within some seconds count as one decision.
    """
    left = list(after)
    for decision in before:
        match = next(
            (
                other
                for other in left
                if (other.model, other.kind, other.change)
                == (decision.model, decision.kind, decision.change)
                and abs(other.at_ms - decision.at_ms) <= _CLOSE_MS
            ),
            None,
        )
        while left and left[0].at_ms < decision.at_ms and left[0] is not match:
            yield "policy", left.pop(0)
        if match is not None:
            left.remove(match)
        yield ("recorded" if match is None else "both"), decision
    for decision in left:
        yield "policy", decision


def show_compared(facts: Mapping[str, Any], policy: str) -> None:
    """Print the comparison of two runs. policy: the file with the other declaration."""
    span_s = (facts["last_ms"] - facts["first_ms"]) / 1000.0
    print(
        f"{moment_words(facts['first_ms'])} to {clock_words(facts['last_ms'])} UTC "
        f"({age_words(span_s)}), decided again as recorded and with {policy}"
    )
    if facts["missing_s"]:
        print(f"not recorded, so demand is unknown: {age_words(facts['missing_s'])}")
    for gap in facts["gaps"][:_MOST_GAPS]:
        print(f"gap: {gap['path']}: byte {gap['offset']}: {gap['why']}")
    label = "declared"
    for change in facts["changed"] or ["no relevant change"]:
        print(f"{label:9} {change}")
        label = ""
    before, after = facts["recorded"], facts["policy"]
    rows = [("", "recorded", "policy", "difference")]
    rows += [
        (name, f"{old:.2f}", f"{new:.2f}", f"{new - old:+.2f}")
        for name, old, new in _figures(before, after)
    ]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [row[k].rjust(widths[k]) for k in (1, 2, 3)]
        print("  ".join(cells).rstrip())
    print("Launches take their predicted time and none fails; latencies are as recorded.")
    told = [one for one in facts["decisions"] if one["kind"] != "hold"]
    if told:
        print("decisions: - only as recorded, + only with the other policy")
    signs = {"both": " ", "recorded": "-", "policy": "+"}
    for one in told[:_MOST_LINES]:
        where = one["in"]
        known = {f.name for f in dataclasses.fields(Decision)}
        decision = Decision(**{key: value for key, value in one.items() if key in known})
        print(clipped(f"{signs[where]} {_line(decision)}", _WIDTH))
    if len(told) > _MOST_LINES:
        print(f"  {len(told) - _MOST_LINES} more in --json")


def _figures(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[tuple[str, float, float]]:
    yield "cost, USD", before["usd"], after["usd"]
    yield "requests above the ready capacity", before["short_requests"], after["short_requests"]
    yield "of requests in all", before["requests"], after["requests"]
    models = dict.fromkeys((*before["models"], *after["models"]))
    if len(models) > 1:
        none = dataclasses.asdict(ModelOutcome())
        for model in models:
            old, new = before["models"].get(model, none), after["models"].get(model, none)
            yield f"{model}: USD", old["usd"], new["usd"]
            yield f"{model}: seconds short", old["short_s"], new["short_s"]


def _line(decision: Decision) -> str:
    change = change_words(decision.change)
    words = f"{change}; {decision.reason}" if change else decision.reason
    return f"{clock_words(decision.at_ms)} {decision.model} {decision.kind} {words}"
