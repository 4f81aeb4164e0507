"""The quantisation of a checkpoint as rules for the storage of its matrices."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.performance.quantization.naming import MatrixNames
from autoscaler.performance.quantization.storage import Storage

EVERY = MatrixNames(frozenset(), (), every=True)
BF16_BITS = 16.0


@dataclass(frozen=True, slots=True)
class Rule:
    """Matrices in `names` are stored as `storage`. None means the model's own dtype."""

    names: MatrixNames
    storage: Storage | None


@dataclass(frozen=True, slots=True)
class Scheme:
    """The storage of all matrices of a checkpoint.

    rules: the first rule that matches a matrix applies; a rule by name precedes a rule by class.
    Matrices without a rule keep their own dtype. head: whether a rule for all linear matrices
    includes the output head; a rule by name always does. experts_alone: whether only routed experts
    are quantised. kv_bits: bits of one number in the KV cache, if the checkpoint states them.
    whole: the reason why tensor parallelism cannot divide the checkpoint; "" if it can. experts:
    storage of routed experts, whatever the rules say; None = as the rules say.
    """

    rules: tuple[Rule, ...] = ()
    head: bool = False
    experts_alone: bool = False
    kv_bits: float = BF16_BITS
    whole: str = ""
    experts: Storage | None = None

    def storage_of(self, names: tuple[str, ...], part: str) -> Storage | None:
        """Storage of the matrix with these `names`. part: as in `matrices.Matrix`."""
        if part in ("embedding", "router", "small") or (self.experts_alone and part != "expert"):
            return None
        if part == "expert" and self.experts is not None:
            return self.experts
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
