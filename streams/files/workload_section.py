"""Read the `workload` section of a model: rate, lengths and optional request types.

`types_as_yaml` writes the types, so that users can paste the output of `shoal workload types`.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.workload import Lengths, WorkloadType
from streams.files import units
from streams.files.name_rules import check_name
from streams.files.yaml_tree import Section

_TOKENS = units.number(1.0, 1e7)
_DEFAULT = Lengths.expected(1024.0, 256.0)
_ROUNDING = 0.005
"""Largest difference from 1 that the sum of the written shares may have."""

Workload = tuple[Lengths, float, tuple[WorkloadType, ...]]


def read_workload(section: Section | None) -> Workload:
    """Returns the lengths of all requests, requests/s, and types. Without `input` and `output`, the
    lengths are the means over the types. ConfigError names file, line and key."""
    if section is None:
        return _DEFAULT, 0.0, ()
    types = _types(section.section("types"))
    req_per_s = section.take("req_per_s", units.number(0.0, 1e6), 0.0)
    if types and "input" not in section and "output" not in section:
        lengths = mean_lengths(types)
        section.take("input", _TOKENS, 1.0)  # so errors for other keys can suggest it
        section.take("output", _TOKENS, 1.0)
    else:
        lengths = Lengths.expected(section.take("input", _TOKENS), section.take("output", _TOKENS))
    section.finish()
    return lengths, req_per_s, types


def refuse_longer(model: Section, workload: Workload, max_len: int) -> None:
    """ConfigError if the mean request of the workload of `model`, or of one of its types, is longer
    than `max_len`, because no instance would accept such a request."""
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
    """Text of the problem if `lengths` exceed the model's `max_len`; "" otherwise."""
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


def _types(section: Section | None) -> tuple[WorkloadType, ...]:
    if section is None:
        return ()
    found = []
    for name, kind in section.children():
        check_name(section, name)
        share = kind.take("share", units.share)
        if share <= 0.0:
            raise kind.error("share", "0 is not allowed; allowed: a share above 0")
        lengths = Lengths(kind.take("input", _TOKENS), kind.take("output", _TOKENS))
        kind.finish()
        found.append((name, share, lengths))
    total = sum(share for _, share, _ in found)
    if found and abs(total - 1.0) > _ROUNDING:
        raise section.error(
            found[-1][0], f"shares sum to {total:.1%}; allowed: 100% (rounding aside)"
        )
    return tuple(WorkloadType(name, share / total, lengths) for name, share, lengths in found)
