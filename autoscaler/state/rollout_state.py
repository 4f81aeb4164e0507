"""The memory about the rollout of one model's versions.

A version is *proven* once a group of it has served for the time `watch`. Until then one group of it
is started, and all other launches use the version that served before (`base`).

Times are domain ms since the epoch; 0 means "not yet".
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.reason import Reason
from autoscaler.rollout.version_comparison import VersionComparison
from autoscaler.rollout.versions import Version


@dataclass(frozen=True, slots=True)
class RolloutState:
    """The rollout of one model.

    base: the last version that replaced all others; None: none has served yet. target: digest of
    the version that is rolled out, "" without a rollout. began_ms: its begin; waves: number of its
    waves; steady_ms: time since which no group of the model starts or leaves. proven: digest of the
    proven version, "" = only base. failures: launches of a proven version that failed during this
    rollout. refused: digest of the version that was taken back, at refused_ms, for the reason why.
    approved: digest of the version that a person approved. bridge_req_per_s: capacity that the
    rollout needs in addition to demand. waits: the reason why the next wave cannot begin.
    comparison: of the first instance with the former version, None without one. speed: measured
    speed of the version relative to base, 1 = unknown; applied: the part of it that the model's
    capacity holds already, as a factor.
    """

    base: Version | None = None
    target: str = ""
    began_ms: int = 0
    waves: int = 0
    steady_ms: int = 0
    proven: str = ""
    failures: int = 0
    refused: str = ""
    refused_ms: int = 0
    why: Reason | None = None
    approved: str = ""
    bridge_req_per_s: float = 0.0
    waits: Reason | None = None
    comparison: VersionComparison | None = None
    speed: float = 1.0
    applied: float = 1.0

    def goal(self, declared: Version) -> Version:
        """The version that all groups shall run at the end: the declared one, or the former one if
        the declared one was taken back."""
        if self.base is not None and self.refused == declared.digest:
            return self.base
        return declared

    def compares(self, declared: Version) -> bool:
        """Whether a group of the version that is rolled out is to be compared with the former
        one."""
        goal = self.goal(declared)
        is_new = self.base is not None and goal.digest not in (self.base.digest, self.proven)
        return is_new and self.target == goal.digest

    def for_launches(self, declared: Version, has_groups: bool) -> Version:
        """The version of launches that a plan requests. has_groups: whether the model has groups;
        without any there is no risk in the declared version."""
        goal = self.goal(declared)
        is_proven = self.base is None or goal.digest in (self.base.digest, self.proven)
        if self.base is None or is_proven or not has_groups:
            return goal
        return self.base

    def is_suspect(self, digest: str) -> bool:
        """Whether the failure of a launch of this version is the fault of the version, because it
        never served."""
        return self.base is not None and digest not in (self.base.digest, self.proven, "")
