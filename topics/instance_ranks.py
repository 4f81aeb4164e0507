"""Gangs: the ranks of an instance over several nodes.

A gang serves only when every rank is up, and stops as a whole when one rank is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks


@dataclass(frozen=True, slots=True)
class GangStage:
    """The part of the model on one rank: `layers` layers on `gpus` GPUs of type `gpu`."""

    gpu: str
    gpus: int
    layers: int

    def __post_init__(self) -> None:
        checks.name("gpu", self.gpu)
        checks.count("gpus", self.gpus, 64)
        checks.count("layers", self.layers, 10_000)


@dataclass(frozen=True, slots=True)
class GangRank:
    """The rank of one process in its gang.

    gang: the name of rank 0's instance; only rank 0 serves requests. rank: number of the rank, from
    0. stages: the stages of all ranks, in order. rendezvous: "host:port" at which rank 0 waits for
    the other ranks; rank 0's executor chooses it at the launch, and the other ranks start once it
    is known. broken: whether a rank has failed, so that the others are killed.
    """

    gang: str
    rank: int
    stages: tuple[GangStage, ...]
    rendezvous: str = ""
    broken: bool = False

    def __post_init__(self) -> None:
        checks.name("gang", self.gang)
        if not 2 <= len(self.stages) <= 64:
            raise checks.InvalidValue("stages", len(self.stages), "2 to 64, one per rank")
        checks.count("rank", self.rank, len(self.stages) - 1)
        if self.rendezvous:
            checks.name("rendezvous", self.rendezvous)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.stages)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def place(self) -> str:
        """The rank as text, e.g. "rank 1 of 2"."""
        return f"rank {self.rank} of {self.size}"

    def same_part(self, other: GangRank | None) -> bool:
        """Whether `other` is the same rank of the same gang; only `rendezvous` and `broken` may
        differ."""
        mine = self.gang, self.rank, self.stages
        return other is not None and mine == (other.gang, other.rank, other.stages)
