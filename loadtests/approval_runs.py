"""Mode approve with a slow person: the share of answers that take effect.

usage: python -m loadtests.approval_runs [--scenario NAME] [--late S,...] [--seeds N] [--share X]

A scenario of `shoal up` runs in virtual time with every model in mode approve. For each model, a
script looks at the open proposal and approves it some seconds later, whatever happened meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.simulation.policies.policy import policy_context
from autoscaler.simulation.policies.registry import POLICIES
from autoscaler.simulation.simulator import simulate
from loadtests.cause_runs import scenario_of
from streams.operator_commands import Conflict, Signed, verdict_record
from topics.decisions import Decision
from topics.reason_codes import ReasonCode


@dataclass(slots=True)
class Answers:
    """proposals: all versions; sent: answers; refused: too late or a second answer; effective:
    answers after which Shoal applied the change; dropped: it could apply nothing of it."""

    proposals: int = 0
    sent: int = 0
    refused: int = 0
    effective: int = 0
    dropped: int = 0


class AnsweredController(ControllerUnderTest):
    """The production controller with a person who answers late_s after a look at a proposal."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self.answers = Answers()
        self._late_ms = int(late_s * 1000)
        self._reads: dict[str, tuple[int, int]] = {}
        self._decisions: deque[Decision] = deque(maxlen=1000)

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """Send the answers that are due, tick, and look at the open proposals."""
        for model, (at_ms, number) in list(self._reads.items()):
            if now_ms >= at_ms:
                del self._reads[model]
                self._send(number, now_ms)
        output = super().decide(inputs, now_ms)
        self._decisions += output.decisions
        found = self.answers
        found.proposals += sum(one.expires_ms > 0 for one in output.decisions)
        found.effective += sum(ReasonCode.PROPOSAL_APPROVED in d.codes for d in output.decisions)
        found.dropped += sum(ReasonCode.PROPOSAL_DROPPED in d.codes for d in output.decisions)
        assert self.state is not None
        for model, state in self.state.models.items():
            proposal = state.advisory.proposal
            if proposal is not None and not proposal.rejected and model not in self._reads:
                self._reads[model] = now_ms + self._late_ms, proposal.number
        return output

    def _send(self, number: int, now_ms: int) -> None:
        self.answers.sent += 1
        by = Signed("ann", "looks right", now_ms, f"answer-{self.answers.sent}")
        try:
            record, _ = verdict_record(
                "approve", number, by, tuple(self._decisions), self.controls.values()
            )
        except Conflict:
            self.answers.refused += 1
            return
        self.controls[record.key] = record


def run(scenario: str, late_s: float, seed: int, share: float = 1.0) -> Answers:
    """The answers of one run."""
    world = scenario_of(scenario, share, seed)
    world = replace(world, cluster=approving(world.cluster))
    policy = POLICIES["shoal"]
    trial = policy.build(policy_context(world), policy.default)
    controller = AnsweredController(late_s)
    simulate(trial.scenario, controller, trial.plan)
    return controller.answers


def approving(cluster: Cluster) -> Cluster:
    """`cluster` with every model in mode approve."""
    services = tuple(replace(service, mode=Mode.APPROVE) for service in cluster.services)
    return replace(cluster, services=services)


def main() -> int:
    """Print one line per run. Return 1 if less than 90% of all answers took effect."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.approval_runs")
    parser.add_argument("--scenario", default="day")
    parser.add_argument("--late", default="20,200", help="seconds of the scenario, comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0)
    args = parser.parse_args()
    sent = effective = 0
    for late_s in map(float, args.late.split(",")):
        for seed in range(1, args.seeds + 1):
            found = run(args.scenario, late_s, seed, args.share)
            print(f"{args.scenario}, {late_s:g} s late, seed {seed}: {found}", flush=True)
            sent, effective = sent + found.sent, effective + found.effective
    print(f"{effective} of {sent} answers took effect")
    return 0 if effective >= 0.9 * sent else 1


if __name__ == "__main__":
    sys.exit(main())
