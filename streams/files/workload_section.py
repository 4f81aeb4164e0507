"""Read the `workload` section of a model: rate, lengths and optional request types.

`types_as_yaml` writes the types, so that users can paste the output of `shoal workload types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoscaler.domain.workload import MOST_PREFIX_HIT, Lengths, WorkloadType
from streams.files import units
from streams.files.keys import Group, Key, Named
from streams.files.name_rules import check_name
from streams.files.yaml_tree import Section

_TOKENS = units.number(1.0, 1e7)

REQ_PER_S = Key(
    "req_per_s",
    units.number(0.0, 1e6),
    "Planned demand in requests/s until the rate is measured. 0 plans no request.",
    otherwise="none declared",
)
INPUT = Key("input", _TOKENS, "Mean tokens of a prompt.", otherwise="1024, or from `types`")
OUTPUT = Key(
    "output",
    _TOKENS,
    "Mean tokens of an answer.",
    otherwise="256, or from `types`; none for pooling models",
)
PREFIX_HIT = Key(
    "prefix_hit",
    units.share,
    "Share of the prompt tokens that prefix caches hold, at most 99%, until it is measured.",
    otherwise="0%",
)
SHARE = Key("share", units.share, "Share of the requests. All shares sum to 100%.")
TYPE_INPUT = Key("input", _TOKENS, "Mean tokens of a prompt of this type.")
TYPE_OUTPUT = Key("output", _TOKENS, "Mean tokens of an answer of this type.")
REQUEST_TYPE = Group("One type of request.", (SHARE, TYPE_INPUT, TYPE_OUTPUT))
WORKLOAD = Group(
    "Expected requests of the model.",
    (REQ_PER_S, INPUT, OUTPUT, PREFIX_HIT),
    {"types": Named("Types of request by name, for a budget.", REQUEST_TYPE)},
)

_DEFAULT = Lengths.expected(1024.0, 256.0)
_ROUNDING = 0.005
"""Largest permitted difference of the sum of the written shares from 1."""

Workload = tuple[Lengths, float | None, tuple[WorkloadType, ...]]


def read_workload(section: Section | None, pooling: bool = False) -> Workload:
    """Returns the lengths of all requests, requests/s (None if none are declared), and types.
    Without `input` and `output`, the lengths are the means over the types. pooling: whether answers
    have no tokens, so that `output` may be missing and does not count. ConfigError names file, line
    and key."""
    if section is None:
        return pooled((_DEFAULT, None, ())) if pooling else (_DEFAULT, None, ())
    types = _types(section.section("types"), pooling)
    req_per_s = REQ_PER_S.take_or(section, None)
    if types and INPUT.name not in section and OUTPUT.name not in section:
        lengths = mean_lengths(types)
    else:
        lengths = Lengths.expected(INPUT.take(section), _output(OUTPUT, section, pooling))
    hit = PREFIX_HIT.take_or(section, 0.0)
    if hit > MOST_PREFIX_HIT:
        raise section.error("prefix_hit", f"{hit:.1%} is not allowed; allowed: 0% to 99%")
    if hit:
        lengths = replace(lengths, prefix_hit=hit)
        types = tuple(
            replace(kind, lengths=replace(kind.lengths, prefix_hit=hit)) for kind in types
        )
    WORKLOAD.finish(section)
    read = lengths, req_per_s, types
    return pooled(read) if pooling else read


def _output(key: Key[float], section: Section, pooling: bool) -> float:
    return key.take_or(section, 1.0) if pooling else key.take(section)


def pooled(workload: Workload) -> Workload:
    """`workload` of a pooling model, whose answers have no tokens and count as one."""
    lengths, req_per_s, types = workload
    kinds = tuple(replace(kind, lengths=_answerless(kind.lengths)) for kind in types)
    return _answerless(lengths), req_per_s, kinds


def _answerless(lengths: Lengths) -> Lengths:
    return replace(lengths, output_tokens=1.0, outputs=(), together=0.0)


def refuse_longer(model: Section, workload: Workload, max_len: int) -> None:
    """ConfigError if the mean request of `model`, or of one of its types, is longer than `max_len`.

    No instance would accept such a request.
    """
    lengths, _, types = workload
    section = model.section("workload")
    if section is None:
        if longer_than(lengths, max_len):
            tokens = lengths.input_tokens + lengths.output_tokens
            raise model.error(
                "max_len",
                f"{max_len} is less than the {tokens:g} tokens of a request without a declared "
                "workload; declare one",
            )
        return
    declared = [(section, lengths)] if "input" in section else []
    kinds = section.section("types")
    by_name = dict(kinds.children()) if kinds is not None else {}
    for where, one in (*declared, *((by_name[kind.name], kind.lengths) for kind in types)):
        problem = longer_than(one, max_len)
        if problem:
            raise where.error("input", problem)


def longer_than(lengths: Lengths, max_len: int) -> str:
    """The problem as text if `lengths` exceed the model's `max_len`, else ""."""
    total = lengths.input_tokens + lengths.output_tokens
    if total <= max_len:
        return ""
    return (
        f"{lengths.input_tokens:g} tokens and {lengths.output_tokens:g} of output are more than "
        f"max_len, {max_len}"
    )


def mean_lengths(types: Sequence[WorkloadType]) -> Lengths:
    """Mean request lengths over all `types`."""
    return Lengths.expected(
        sum(kind.share * kind.lengths.input_tokens for kind in types),
        sum(kind.share * kind.lengths.output_tokens for kind in types),
    )


def types_as_yaml(types: Sequence[WorkloadType]) -> str:
    """The request types as YAML text for the `types` of a workload."""
    lines = [
        f"  {kind.name}: {{share: {kind.share:.2%}, input: {kind.lengths.input_tokens:.0f}, "
        f"output: {kind.lengths.output_tokens:.0f}}}"
        for kind in types
    ]
    return "\n".join(["types:", *lines])


def _types(section: Section | None, pooling: bool) -> tuple[WorkloadType, ...]:
    if section is None:
        return ()
    found = []
    for name, kind in section.children():
        check_name(section, name)
        share = SHARE.take(kind)
        if share <= 0.0:
            raise kind.error("share", "0 is not allowed; allowed: a share above 0")
        lengths = Lengths(TYPE_INPUT.take(kind), _output(TYPE_OUTPUT, kind, pooling))
        REQUEST_TYPE.finish(kind)
        found.append((name, share, lengths))
    total = sum(share for _, share, _ in found)
    if found and abs(total - 1.0) > _ROUNDING:
        raise section.error(
            found[-1][0], f"shares sum to {total:.1%}; allowed: 100% (rounding aside)"
        )
    return tuple(WorkloadType(name, share / total, lengths) for name, share, lengths in found)
