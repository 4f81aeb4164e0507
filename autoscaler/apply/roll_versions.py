"""Rollouts: waves that replace groups of other versions by groups of the declared version.

A wave begins if no group of the model starts or leaves, and the last wave has served for `watch`.
It starts groups on free GPUs, and the old ones leave when these are ready. Without free GPUs, an
old group leaves first, and the new one gets its GPUs. The first wave has one group, which proves
the version: by serving, or as a canary (`apply.canary`) that is compared with the former version.
If a version fails, the former one is the goal of the same waves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from autoscaler.apply.canary import compared, verdict, with_measured_speed
from autoscaler.apply.decision import decision_about
from autoscaler.apply.fleet_changes import AppliedPlan, FleetChanges
from autoscaler.apply.rollout_failures import failure_of
from autoscaler.apply.rollout_orders import is_paused, ordered_again, ordered_back
from autoscaler.apply.rollout_places import Placement, in_place, place_wave
from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.planning.planner_messages import FleetChange
from autoscaler.rollout.capacity_and_cost import raw_req_per_s
from autoscaler.rollout.diff import FreeCapacity
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.version_comparison import begun
from autoscaler.rollout.versions import Version, declared_version, most_common, runs, version_of
from autoscaler.rollout.waves import reactivate, retire
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import ROLLOUT_PROPOSAL, PendingApproval
from autoscaler.state.model_view import SLIVER
from autoscaler.state.rollout_state import RolloutState
from topics.launch_version import without_template
from topics.reason_codes import ReasonCode

_LEAVING = (Life.RETIRING, Life.UNROUTED, Life.DRAINING)


def roll_versions(fleet: TickFleet, site: FreeCapacity) -> AppliedPlan:
    """Advance the rollouts of all managed models, and begin those of changed versions."""
    changed = with_rollouts(fleet)
    if not changed:
        return AppliedPlan(fleet.groups, site, fleet.models)
    changes = FleetChanges(fleet, site)
    for service in sorted(changed, key=lambda one: (-one.priority, one.model)):
        rollout = _Rollout.of(service, changes)
        state = changes.models[service.model]
        after = rollout.advance(state.rollout)
        if after != state.rollout:
            state = changes.models[service.model]
            share = rollout.share_of(after.target)
            changes.models[service.model] = with_measured_speed(state, after, share, fleet.now_ms)
    return changes.result()


def with_rollouts(fleet: TickFleet) -> list[Service]:
    """Managed services with a rollout, or with groups of another version than their base."""
    versions: dict[str, set[tuple[str, str]]] = {}
    for group in fleet.groups:
        version = version_of(group)
        versions.setdefault(group.model, set()).add((version.digest, version.engine))
    found = []
    for service in fleet.cluster.services:
        rollout = fleet.models[service.model].rollout
        running = versions.get(service.model, set())
        base = rollout.base
        settled = base is None or running <= {(base.digest, base.engine)}
        idle = base is None if not running else base == declared_version(service)
        if service.model in fleet.managed and not (settled and idle and not rollout.target):
            found.append(service)
    return found


@dataclass(slots=True)
class _Rollout:
    """The rollout of one model in one tick. own: the model's groups by name."""

    service: Service
    changes: FleetChanges
    own: dict[str, ServingGroup]

    @classmethod
    def of(cls, service: Service, changes: FleetChanges) -> _Rollout:
        own = {n: g for n, g in changes.groups.items() if g.model == service.model}
        return cls(service, changes, own)

    def advance(self, state: RolloutState) -> RolloutState:
        """The state after this tick. Changes groups and adds decisions."""
        declared = declared_version(self.service)
        state = ordered_again(state, self.service.model, self.fleet)
        if state.base is None:
            state = replace(state, base=most_common(g for g in self.own.values() if self._up(g)))
            if state.base is None and not self._outdated(declared):
                return state
        goal = state.goal(declared)
        if self._is_relabelled(state, goal):
            return replace(state, base=goal)
        if state.base is not None and goal.digest != state.base.digest:
            why = ordered_back(state, self.service.model, self.fleet)
            if why is None:
                state, why = failure_of(state, goal, self.own.values(), self.fleet)
            if why is None:
                state, why = compared(state, goal, self.own.values(), self.service, self.fleet)
            if why is not None:
                state = self._take_back(state, goal, why)
                goal = state.goal(declared)
        outdated = self._outdated(goal)
        if not outdated:
            return self._finished(state, goal)
        if state.target != goal.digest:
            if not any(group.life is Life.ACTIVE for group in outdated):
                return state
            state = self._begun(state, goal)
        if not self._is_approved(state, goal):
            return state
        return self._advanced(state, goal)

    def _is_relabelled(self, state: RolloutState, goal: Version) -> bool:
        """Whether `goal` differs from the former version only in templates that launched no group
        of this model."""
        base = state.base
        if base is None or state.target or base.engine != goal.engine or base == goal:
            return False
        is_same = without_template(base.digest) == without_template(goal.digest)
        return is_same and not self._outdated(goal)

    @property
    def fleet(self) -> TickFleet:
        return self.changes.fleet

    def share_of(self, digest: str) -> float:
        """The share of groups that run the version with this digest."""
        counting = [group for group in self.own.values() if group.counts]
        return sum(version_of(one).digest == digest for one in counting) / max(1, len(counting))

    def _up(self, group: ServingGroup) -> bool:
        view = self.fleet.sight.views.get(group.name)
        return group.counts and view is not None and view.all_ready

    def _outdated(self, goal: Version) -> list[ServingGroup]:
        """Groups that do not run `goal`, leaving ones included."""
        return [group for group in self.own.values() if not runs(group, goal)]

    def _set(self, group: ServingGroup) -> None:
        self.own[group.name] = self.changes.groups[group.name] = group

    def _drop(self, group: ServingGroup) -> None:
        del self.own[group.name], self.changes.groups[group.name]

    def _decide(
        self,
        code: ReasonCode,
        names: tuple[str, ...] = (),
        figures: tuple[float, ...] = (),
        because: tuple[Reason, ...] = (),
    ) -> None:
        why = Reason(code, self.service.model, names, figures, because=because)
        self.changes.decisions.append(notice(self.service.model, why, self.fleet.now_ms))

    def _begun(self, state: RolloutState, goal: Version) -> RolloutState:
        """A rollout to `goal`. A proven version of an unfinished rollout becomes the base if most
        groups run it."""
        up = most_common(group for group in self.own.values() if self._up(group))
        base = state.base
        if up is not None and up.digest == state.proven:
            base = up
        old = most_common(self._outdated(goal)) or goal
        groups = [group for group in self.own.values() if group.counts]
        figures = float(sum(not runs(group, goal) for group in groups)), float(len(groups))
        self._decide(ReasonCode.ROLLOUT_BEGAN, (old.engine, goal.engine), figures)
        refused = state.refused if base == goal else ""
        canary = self.service.rollout.canary if base != goal else None
        return RolloutState(
            base=base,
            target=goal.digest,
            began_ms=self.fleet.now_ms,
            proven=goal.digest if base == goal else "",
            refused=refused,
            refused_ms=state.refused_ms if refused else 0,
            why=state.why if refused else None,
            approved=state.approved,
            comparison=begun(canary.compare) if canary is not None else None,
        )

    def _take_back(self, state: RolloutState, failed: Version, why: Reason) -> RolloutState:
        """Make the former version the goal again, instead of `failed`. Groups of the failed
        version that do not serve leave at once, and so does a canary whose predecessor still
        serves. Groups that they were to replace stay."""
        base, now_ms = state.base, self.fleet.now_ms
        assert base is not None  # noqa: S101  the caller checks it
        kept = self.own.get(state.comparison.kept) if state.comparison is not None else None
        has_former = kept is not None and self._up(kept)
        for group in tuple(self.own.values()):
            if runs(group, base):
                if group.life in (Life.RETIRING, Life.UNROUTED) and not group.failed_ms:
                    self._set(reactivate(group, now_ms))
            elif group.replaces:
                self._drop(group)
            elif group.life is Life.ACTIVE and (has_former or not self._up(group)):
                self._set(retire(group, now_ms))
        self._restart(base)
        self._decide(ReasonCode.ROLLOUT_TAKEN_BACK, because=(why,))
        return replace(
            state, target="", proven="", refused=failed.digest, refused_ms=now_ms, why=why,
            bridge_req_per_s=0.0, waits=None, comparison=None, speed=1.0, applied=1.0,
        )  # fmt: skip

    def _restart(self, base: Version) -> None:
        """Give the GPUs of failed groups to groups of `base`, as far as demand needs them."""
        view, combos = self.fleet.views[self.service.model], self.fleet.combos
        left = raw_req_per_s((g for g in self.own.values() if g.counts), combos)
        for group in tuple(self.own.values()):
            if left >= view.raw_for(view.state.target.req_per_s) * (1.0 - SLIVER):
                return
            if group.life is Life.RETIRING and not runs(group, base) and not self._up(group):
                new = in_place(group, base, self.service, self.changes)
                if new is not None:
                    self._set(new)
                    left += raw_req_per_s([new], combos)

    def _finished(self, state: RolloutState, goal: Version) -> RolloutState:
        """The state without a rollout, once all groups of `goal` serve."""
        if not any(self._up(group) for group in self.own.values()):
            return replace(state, bridge_req_per_s=0.0) if not self.own else state
        if state.target and any(g.counts and not self._up(g) for g in self.own.values()):
            return state
        if state.target:
            seconds = (self.fleet.now_ms - state.began_ms) / 1000.0
            self._decide(ReasonCode.ROLLOUT_DONE, (goal.engine,), (float(state.waves), seconds))
        elif state.base == goal:
            return state
        return RolloutState(
            base=goal, refused=state.refused, refused_ms=state.refused_ms, why=state.why
        )

    def _is_approved(self, state: RolloutState, goal: Version) -> bool:
        """Whether the rollout needs no (further) approval; else propose it. The way back to the
        former version needs none."""
        if self.service.mode is not Mode.APPROVE or goal == state.base:
            return True
        if state.approved == goal.digest:
            return True
        model = self.service.model
        known = self.changes.models[model]
        old = self._outdated(goal)
        names = (most_common(old) or goal).engine, goal.engine, goal.digest
        waiting = known.advisory.proposal
        if waiting is not None:
            is_other = waiting.kind != ROLLOUT_PROPOSAL or waiting.reasons[0].names == names
            if waiting.expires_ms > self.fleet.now_ms and is_other:
                return False
        figures = float(len(old)), float(len(self.own))
        why = (Reason(ReasonCode.ROLLOUT_PROPOSED, model, names, figures),)
        now_ms = self.fleet.now_ms
        expires_ms = now_ms + int(self.fleet.cluster.policy.approve_within_s * 1000)
        nothing = FleetChange((), (), ())
        proposal = PendingApproval(0, ROLLOUT_PROPOSAL, (), nothing, (), why, now_ms, expires_ms)
        self.changes.models[model] = replace(
            known, advisory=replace(known.advisory, proposal=proposal)
        )
        said = decision_about(self.fleet, model, "replan", why, known, False)
        self.changes.decisions.append(replace(said, expires_ms=expires_ms))
        return False

    def _advanced(self, state: RolloutState, goal: Version) -> RolloutState:
        """Prove the version, and begin a wave if one may begin."""
        now_ms, view = self.fleet.now_ms, self.fleet.views[self.service.model]
        if self._is_moving(state, goal):
            return replace(state, steady_ms=0, waits=None)
        state = replace(state, steady_ms=state.steady_ms or now_ms)
        serves = any(runs(group, goal) and self._up(group) for group in self.own.values())
        if serves and now_ms - state.steady_ms < 1000 * self.service.rollout.watch_s:
            return state
        if serves and state.proven != goal.digest:
            if self.service.rollout.canary is not None:
                why = verdict(state, self.service, now_ms)
                if why is None:
                    return replace(state, waits=None)
                state = self._passed(state, goal, why)
            state = replace(state, proven=goal.digest)
        paused = is_paused(self.service.model, self.fleet) or view.frozen
        if paused is not None:
            return self._waiting(state, paused)
        is_late = now_ms - state.began_ms >= 1000 * self.service.rollout.within_s
        is_short = view.planned_req_per_s < view.state.target.needed_req_per_s * (1.0 - SLIVER)
        if is_short and not is_late:
            return self._waiting(state, Reason(ReasonCode.NOT_COVERED))
        return self._wave(state, goal, 0 if serves else 1)

    def _passed(self, state: RolloutState, goal: Version, why: Reason) -> RolloutState:
        """The state after the verdict `why` for a canary. A group that stayed only for the
        comparison leaves, and the measured speed counts."""
        known = state.comparison
        assert known is not None  # noqa: S101  its verdict is `why`
        self.changes.decisions.append(notice(self.service.model, why, self.fleet.now_ms))
        kept = self.own.get(known.kept)
        if kept is not None and kept.life is Life.ACTIVE:
            after = tuple(one.name for one in self.own.values() if runs(one, goal))
            self._set(retire(kept, self.fleet.now_ms, after))
        speed = known.speed if why.code is ReasonCode.CANARY_FIT else 1.0
        return replace(state, comparison=None, speed=speed, bridge_req_per_s=0.0)

    def _is_moving(self, state: RolloutState, goal: Version) -> bool:
        """Whether a group of the model starts or leaves. A starting group of neither the former
        version nor `goal` is left out, because it is replaced first."""
        stays = [goal] if state.base is None else [goal, state.base]
        return any(
            group.life in _LEAVING
            or group.failed_ms
            or group.switch is not None
            or (not self._up(group) and any(runs(group, version) for version in stays))
            for group in self.own.values()
        )

    def _wave(self, state: RolloutState, goal: Version, most: int) -> RolloutState:
        """Begin a wave of at most `most` groups; 0 = as many as the declared step."""
        counts = Counter(version_of(group) for group in self.own.values())
        old = sorted(
            (group for group in self._outdated(goal) if group.counts),
            key=lambda g: (self._up(g), counts[version_of(g)], g.created_ms, g.name),
        )
        if not old:
            return state
        step = most or max(1, int(self.service.rollout.step * len(self.own)))
        found = place_wave(old[:step], self.own.values(), goal, self.service, state, self.changes)
        if isinstance(found, Reason):
            return self._waiting(state, found)
        if isinstance(found, float):
            return replace(state, bridge_req_per_s=found)
        kept = self._kept(found, old, state, goal)
        for one in found:
            self._replace(one, keeps=one is kept)
        if kept is not None and state.comparison is not None:
            comparison = replace(state.comparison, kept=kept.old.name)
            state = replace(state, comparison=comparison)
        done = sum(runs(group, goal) for group in self.own.values())
        leaving = len(found) - (kept is not None)
        total = done + len(old) - leaving
        figures = float(state.waves + 1), float(leaving), float(done), float(total)
        self._decide(ReasonCode.ROLLOUT_WAVE, figures=figures)
        return replace(state, waves=state.waves + 1, steady_ms=0, waits=None)

    def _kept(
        self,
        found: list[Placement],
        old: list[ServingGroup],
        state: RolloutState,
        goal: Version,
    ) -> Placement | None:
        """The placement of a canary whose predecessor must stay, because the canary can be compared
        with no other group."""
        if self.service.rollout.canary is None or not state.compares(goal):
            return None
        one, base = found[0], state.base
        peers = [g for g in old if base is not None and runs(g, base) and self._up(g)]
        return one if peers == [one.old] and not one.new.replaces else None

    def _replace(self, one: Placement, *, keeps: bool = False) -> None:
        """Start a replacement. keeps: whether the replaced group stays for now."""
        now_ms = self.fleet.now_ms
        self._set(one.new)
        if keeps:
            return
        in_place = one.new.replaces == one.old.name
        after = () if in_place else (one.new.name,)
        self._set(retire(one.old, now_ms, after, yields=in_place))

    def _waiting(self, state: RolloutState, why: Reason) -> RolloutState:
        """The state of a rollout that waits, with one notice per kind of reason."""
        if state.waits is None or state.waits.kind != why.kind:
            self._decide(ReasonCode.ROLLOUT_WAITS, because=(why,))
            return replace(state, waits=why)
        return state
