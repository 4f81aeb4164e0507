"""The quantisation of a checkpoint as rules: how each of its matrices is stored."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.performance.quantization.naming import Names
from autoscaler.performance.quantization.storage import Storage

EVERY = Names(frozenset(), (), every=True)
BF16_BITS = 16.0


@dataclass(frozen=True, slots=True)
class Rule:
    """Matrices that `names` names are stored as `storage`; None: in the model's own dtype."""

    names: Names
    storage: Storage | None


@dataclass(frozen=True, slots=True)
class Scheme:
    """rules: the first that names a matrix decides; a rule by name goes before one by class.
    Matrices that no rule names keep their own dtype.

    head: whether a rule for all linear matrices means the output head too; one by name does always.
    experts_alone: whether
    nothing but routed experts is. kv_bits: of one number in the KV cache, where the checkpoint
    decides it. whole: why no tensor parallelism can divide it; "" where it can.
    """

    rules: tuple[Rule, ...] = ()
    head: bool = False
    experts_alone: bool = False
    kv_bits: float = BF16_BITS
    whole: str = ""

    def storage_of(self, names: tuple[str, ...], part: str) -> Storage | None:
        """How the matrix with these `names` is stored; part: see `matrices.Matrix`."""
        if part in ("embedding", "router", "small") or (self.experts_alone and part != "expert"):
            return None
        for rule in self.rules:
            if rule.names.has_by_name(names):
                return rule.storage
        if part == "head" and not self.head:
            return None
        for rule in self.rules:
            if rule.names.every:
                return rule.storage
        return None


UNQUANTISED = Scheme()
