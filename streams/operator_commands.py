"""Records of operator commands: pause, freeze, release, approve, reject and their opposites.

The command line and the console write the same records, after the same checks. The caller provides
the latest records and writes the new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from autoscaler.explain.combo_labels import change_words
from streams.files import units
from streams.files.user_errors import UserError
from streams.plain_text import age_words
from topics.controls import ALL_MODELS
from topics.records import Control, Decision


@dataclass(frozen=True, slots=True)
class _Command:
    """A kind of operator command. kind, active: values of the record. said: the result as text.

    needs_why: whether a reason is required. before: word for the state that the command ends.
    """

    kind: str
    active: bool
    said: str
    needs_why: bool = False
    before: str = ""


COMMANDS = {
    "pause": _Command("pause", True, "paused; nothing is changed from the next tick on", True),
    "resume": _Command("pause", False, "resumed", before="paused"),
    "freeze": _Command("freeze", True, "frozen; nothing is removed from the next tick on", True),
    "unfreeze": _Command("freeze", False, "no longer frozen", before="frozen"),
    "release": _Command(
        "release",
        True,
        "released; its instances keep running without Shoal",
        True,
    ),
    "adopt": _Command("release", False, "managed again as declared", before="released"),
    "approve": _Command("verdict", True, "approved"),
    "reject": _Command("verdict", False, "rejected", True),
}
VERDICTS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class Signed:
    """The person who gave a command. who, why: free text. at_ms: domain time."""

    who: str
    why: str
    at_ms: int


def needs_why(command: str) -> bool:
    """Whether the command must state a reason."""
    return COMMANDS[command].needs_why


def refuse_silence(command: str, why: str, field: str) -> None:
    """UserError if `command` needs a reason and `why` is empty. field: name of the reason."""
    if needs_why(command) and not why.strip():
        raise UserError(f"{field}: '' is not allowed; allowed: the reason as text")


def control_record(
    command: str,
    scope: str,
    by: Signed,
    lasting: str,
    models: Collection[str],
    controls: Iterable[Control],
) -> tuple[Control, str]:
    """The record of a command on a model or on all models, and its result as text.

    lasting: how long a pause or freeze lasts, as "2h", "" without end. models: declared models,
    empty if they are not known. controls: the latest record of each key. UserError: the model is
    unknown, the duration is invalid, or there is nothing to end.
    """
    of = COMMANDS[command]
    if of.active and scope != ALL_MODELS and models and scope not in models:
        near = get_close_matches(scope, models, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"declared: {', '.join(models)}"
        raise UserError(f"{scope}: no model of this name; {hint}")
    until_ms = 0
    if lasting:
        until_ms = by.at_ms + int(units.named_duration_s("--for", lasting) * 1000)
    what = "every model" if scope == ALL_MODELS else scope
    if not of.active:
        before = {record.key: record for record in controls}.get(f"{of.kind}/{scope}")
        if before is None or not before.active:
            raise UserError(f"{what}: not {of.before} by that name; see shoal status")
    record = Control(scope, of.kind, of.active, by.who, by.why, by.at_ms, until_ms)
    for_ = f", for {age_words((until_ms - by.at_ms) / 1000.0)}" if until_ms else ""
    return record, f"{what}: {of.said}{for_}"


def verdict_record(
    command: str,
    number: int,
    by: Signed,
    decisions: Sequence[Decision],
    controls: Iterable[Control],
) -> tuple[Control, str]:
    """The record that approves or rejects proposal `number`, and its result as text.

    decisions: the last decisions, oldest first. controls: the latest record of each key. UserError:
    the proposal is not open.
    """
    found = next((d for d in reversed(decisions) if d.number == number), None)
    name = f"#{number}"
    told = {
        (c.leader_token, c.proposal): c for c in controls if c.kind == "verdict"
    }  # Each leader numbers its proposals from 1.
    if found is None or not found.expires_ms:
        waiting = (d for d in decisions if d.expires_ms > by.at_ms)
        open_ = [str(d.number) for d in waiting if (d.leader_token, d.number) not in told][-5:]
        raise UserError(f"{name}: no such proposal; open: {', '.join(open_) or 'none'}")
    before = told.get((found.leader_token, found.number))
    if before is not None:
        what = "approved" if before.active else "rejected"
        why = f": {before.why}" if before.why else ""
        raise UserError(f"{name}: {what} already by {before.who}{why}")
    if by.at_ms >= found.expires_ms:
        ago = age_words((by.at_ms - found.expires_ms) / 1000.0)
        raise UserError(f"{name}: expired {ago} ago; the next one gets a number of its own")
    newer = [d for d in decisions if d.model == found.model and d.expires_ms > found.expires_ms]
    if newer:
        raise UserError(f"{name}: replaced by #{newer[-1].number}")
    record = Control(
        found.model, "verdict", COMMANDS[command].active, by.who, by.why, by.at_ms,
        proposal=found.number, leader_token=found.leader_token,
    )  # fmt: skip
    said = COMMANDS[command].said
    return record, f"{name} {found.model}: {change_words(found.change)}: {said}"
