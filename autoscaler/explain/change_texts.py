"""Sentences for the parts of a change: its cause, its cost, and the time at which it takes
effect."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import rate
from autoscaler.explain.sentences import Sentence, Text
from topics.reason_codes import ReasonCode as Code

_MOST_NODES = 3


def _replanned(reason: Reason, text: Text) -> str:
    return f"plan trigger: {', '.join(dict.fromkeys(map(text, reason.because)))}"


def _makes_room(reason: Reason, _: Text) -> str:
    pool, *models = reason.names
    return f"{' and '.join(models)} {'need' if len(models) > 1 else 'needs'} the GPUs of {pool}"


def _capacity_lost(reason: Reason, _: Text) -> str:
    if not reason.names:
        return "capacity was lost"
    shown, more = reason.names[:_MOST_NODES], len(reason.names) - _MOST_NODES
    rest = f" and {more} more" if more > 0 else ""
    return f"the capacity on {', '.join(shown)}{rest} was lost"


def _rollout_began(reason: Reason, _: Text) -> str:
    old, new = reason.names
    which = f"{new} replaces {old}" if old != new else f"{new} with other weights or settings"
    return f"rollout began: {which}, {reason.quantities[0]:.0f} of {reason.quantities[1]:.0f}"


_METRICS = {
    "errors": ("failed requests", "{:.1%}"),
    "ttft": ("time to the first token", "{:.0f} ms"),
    "tpot": ("time per token", "{:.1f} ms"),
    "longer": ("answers, if longer,", "{:.0f} tokens"),
    "shorter": ("answers, if shorter,", "{:.0f} tokens"),
}


def canary_figures(metric: str, new: float, old: float) -> str:
    """The values of a property of both versions as text."""
    name, form = _METRICS[metric]
    return f"{name} {form.format(new)} instead of {form.format(old)}"


def _canary(reason: Reason, _: Text) -> str:
    new, old, above, trials, answers = reason.quantities
    figures = canary_figures(reason.names[0], new, old)
    if reason.code is Code.CANARY_WORSE:
        return (
            f"the canary is worse: {figures}, in {above:.0f} of {trials:.0f} comparisons "
            f"({answers:.0f} answers)"
        )
    if reason.code is Code.CANARY_FIT:
        return f"the canary is fit: {figures}, {answers:.0f} answers compared; the rollout goes on"
    return f"no verdict about the canary: {figures}, {answers:.0f} answers; the rollout goes on"


def _role_switches(reason: Reason, _: Text) -> str:
    many = reason.quantities[0]
    return f"{many:.0f} role switch{'es' if many > 1 else ''} in place"


def _unserved(reason: Reason, text: Text) -> str:
    short, sought = map(rate, reason.quantities)
    bound = "; ".join(dict.fromkeys(map(text, reason.because)))
    return f"{short} of {sought} req/s cannot be served: {bound}"


def _floor_unmet(reason: Reason, text: Text) -> str:
    floor, runs = reason.quantities
    bound = "; ".join(dict.fromkeys(map(text, reason.because)))
    return f"floor of {floor:.0f}: only {runs:.0f} can run: {bound}"


CHANGE_TEXTS: Mapping[Code, Sentence] = {
    Code.REPLANNED: _replanned,
    Code.CAPACITY_LOST: _capacity_lost,
    Code.FLOOR: "floor of {0:.0f}",
    Code.REQUIRED: "required by {because}",
    Code.MAKES_ROOM: _makes_room,
    Code.SLO_PREDICTED: "its present GPUs are predicted to miss the SLO",
    Code.MORE_WORK: "more work for the budget",
    Code.CHEAPER: "the same demand for {0:.2f} USD/h less",
    Code.EQUAL_COST: "about as cheap as before, within the tolerance of plans",
    Code.PLAN_SAVES: "without it, the plan of all models would cost {0:.2f} USD/h more",
    Code.COST: "{0:money}",
    Code.MOVED_TOGETHER: "moved to other nodes, which frees a node of {all_names}",
    Code.ROLLOUT_BEGAN: _rollout_began,
    Code.ROLLOUT_WAVE: (
        "wave {0:.0f} of the rollout replaces {1:.0f}; then {2:.0f} of {3:.0f} run the new version"
    ),
    Code.ROLLOUT_DONE: "{names[0]} runs everywhere after {0:.0f} waves, {1:lasting}",
    Code.ROLLOUT_PROPOSED: "roll out {names[1]} instead of {names[0]}: {0:.0f} of {1:.0f} combos",
    Code.ROLLOUT_WAITS: "the next wave of the rollout waits: {because}",
    Code.ROLLOUT_TAKEN_BACK: "the new version is taken back: {because}",
    Code.CANARY_COMPARED: "a canary is being compared",
    Code.CANARY_FIT: _canary,
    Code.CANARY_UNDECIDED: _canary,
    Code.CANARY_WORSE: _canary,
    Code.CRASH_LOOP: "{subject} ended {0:.0f} times",
    Code.ORDERED_BACK: "ordered by {names[0]}: {quoted}",
    Code.NO_SLACK: "no capacity can leave, and no GPU is free",
    Code.SERVING_IN: "serving in {0:duration}",
    Code.ROLE_SWITCHES: _role_switches,
    Code.PLAN_GAP: "plan within {0:.1%} of the best",
    Code.UNSERVED: _unserved,
    Code.FLOOR_UNMET: _floor_unmet,
    Code.NOTHING_MORE: "no further capacity is available",
}
