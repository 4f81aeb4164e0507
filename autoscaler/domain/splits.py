"""Widths that tensor parallelism divides, and the allowed parts. Each GPU gets an equal part of
every matrix. Quantised weights have scales per block or group; if a part does not consist of whole
blocks or groups, the engine refuses to start.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.validation import whole


@dataclass(frozen=True, slots=True)
class Split:
    """One width of a model's matrices.

    name: the width's key in the configuration. width: number of entries. multiple: each GPU's part
    must be a multiple of this. most_parts: largest number of parts (KV heads); more GPUs get copies
    of parts; 0: no limit. expert: whether the width belongs to routed experts, which expert
    parallelism does not divide. why: the configuration key that requires the multiple.
    """

    name: str
    width: int
    multiple: int = 1
    most_parts: int = 0
    expert: bool = False
    why: str = ""

    def __post_init__(self) -> None:
        for field in ("width", "multiple"):
            whole(f"split {self.name}: {field}", getattr(self, field), 1, 10**9)

    def refusal(self, gpus: int) -> str:
        """The reason why `gpus` GPUs cannot share the width; "" if they can."""
        if gpus == 1:
            return ""
        parts = gpus
        if self.most_parts and gpus > self.most_parts:
            if gpus % self.most_parts:
                return f"{self.most_parts} KV heads neither divide by {gpus} nor into it"
            parts = self.most_parts
        if self.width % parts:
            return f"{self.name} {self.width} does not divide by {parts}"
        part = self.width // parts
        if part % self.multiple:
            why = f" ({self.why})" if self.why else ""
            share = f"{self.name} {self.width} / {parts} = {part}"
            return f"{share} is no multiple of {self.multiple}{why}"
        return ""
