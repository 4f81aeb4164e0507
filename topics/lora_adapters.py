"""LoRA adapters of a model: names by which clients request the model with modified weights.

Planner, executor and gateway each read adapters from their own configuration, by these rules. Facts
about vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from topics import checks

MOST_ADAPTERS = 128
"""Maximum of adapters per model, because metrics and telemetry have one series per adapter."""
DEFAULT_RANK = 16
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_DEFAULT_IN_BATCH = 8
_KIND = "adapter:"


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter. weights: path or repository that the engine loads. rank: the rank of its
    matrices, which determines the memory that the engine reserves."""

    name: str
    weights: str
    rank: int = DEFAULT_RANK

    def __post_init__(self) -> None:
        checks.name("name", self.name)
        # so adapter names must be slightly shorter than other names
        checks.name("name", kind_of_adapter(self.name))
        checks.machine_text("weights", self.weights, 4000)
        if not self.weights or self.weights.startswith("-"):
            raise checks.InvalidValue("weights", self.weights, "a path or a repository")
        if type(self.rank) is not int or not 1 <= self.rank <= _RANKS[-1]:
            raise checks.InvalidValue("rank", self.rank, f"1 to {_RANKS[-1]}")


def check_adapters(adapters: Sequence[Adapter]) -> None:
    """Raise InvalidValue for too many adapters, or for two with one name."""
    if len(adapters) > MOST_ADAPTERS:
        raise checks.InvalidValue("adapters", len(adapters), f"at most {MOST_ADAPTERS}")
    names = [adapter.name for adapter in adapters]
    for name in names:
        if names.count(name) > 1:
            raise checks.InvalidValue("adapters", name, "each name once")


def rank_limit(adapters: Iterable[Adapter]) -> int:
    """The value of --max-lora-rank: the lowest one that vLLM accepts and that covers all ranks."""
    highest = max(adapter.rank for adapter in adapters)
    return next(rank for rank in _RANKS if rank >= highest)


def in_batch(args: Sequence[str], count: int) -> int:
    """The number of different adapters in one batch, for each of which vLLM reserves memory:
    --max-loras in `args`, otherwise `count`, at most 8. Raises InvalidValue for an invalid
    argument."""
    declared = declared_in_batch(args)
    return declared if declared is not None else min(count, _DEFAULT_IN_BATCH)


def declared_in_batch(args: Sequence[str]) -> int | None:
    """The value of --max-loras in `args`; None without it."""
    for arg, following in zip(args, (*args[1:], ""), strict=False):
        name, equals, value = arg.partition("=")
        if name.replace("_", "-") == "--max-loras":
            text = value if equals else following
            if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 512:
                raise checks.InvalidValue("--max-loras", text, "a whole number from 1 to 512")
            return int(text)
    return None


def kind_of_adapter(name: str) -> str:
    """The kind under which `Telemetry.sent` counts the requests for the adapter `name`."""
    return _KIND + name


def requests_by_adapter(kinds: Mapping[str, int]) -> dict[str, int]:
    """Requests by adapter, from requests by kind."""
    return {
        kind.removeprefix(_KIND): count for kind, count in kinds.items() if kind.startswith(_KIND)
    }
