"""Records of operator commands: pause, freeze, release, approve, reject and their opposites.

The command line and the console write the same records, after the same checks. The caller provides
the latest records and writes the new one.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile

from autoscaler.explain.combo_labels import change_words
from streams.files import units
from streams.files.user_errors import UserError
from streams.plain_text import age_words
from topics.controls import ALL_MODELS, verdict_key
from topics.records import Control, Decision


@dataclass(frozen=True, slots=True)
class _Command:
    """A kind of operator command. kind, active: values of the record. said: the result as text.

    needs_why: whether a reason is required. before: word for the state that the command ends.
    anytime: whether the command has an effect without such a state.
    """

    kind: str
    active: bool
    said: str
    needs_why: bool = False
    before: str = ""
    anytime: bool = False


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
    "rollout-pause": _Command("rollout-pause", True, "its rollout begins no further wave", True),
    "rollout-resume": _Command(
        "rollout-pause",
        False,
        "its rollout continues; a version that was taken back is tried again",
        anytime=True,
    ),
    "rollout-back": _Command("rollout-back", True, "the former version returns", True),
    "approve": _Command("verdict", True, "approved"),
    "reject": _Command("verdict", False, "rejected", True),
}
VERDICTS = ("approve", "reject")


@dataclass(frozen=True, slots=True)
class Signed:
    """The person who gave a command. who: name from the person's token, proxy or account, never
    from the command. why: free text. at_ms: domain time. command_id: random id of the command, the
    same if it is repeated. is_person: whether one person has this name; of a shared token, only the
    same command id is a repetition.
    """

    who: str
    why: str
    at_ms: int
    command_id: str = ""
    is_person: bool = False


class Conflict(UserError):
    """A command came too late: another one was first, or its subject has changed. first: the
    command that was first."""

    def __init__(self, text: str, first: Control | None = None) -> None:
        super().__init__(text)
        self.first = first


def new_command_id() -> str:
    """A random id for one command."""
    return secrets.token_hex(8)


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
    expected: int | None = None,
) -> tuple[Control, str]:
    """The record of a command on a model or on all models, and its result as text. If the command
    is a repetition of the one in force, that record is returned.

    lasting: how long a pause or freeze lasts, as "2h", "" without end. models: declared models,
    empty if they are not known. controls: the command in force of each subject. expected: version
    of the command that this one answers, None for the present one. UserError: the model is unknown
    or the duration is invalid. Conflict: there is nothing to end, or another version is in force.
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
    before = {record.key: record for record in controls}.get(f"{of.kind}/{scope}")
    version = before.version if before is not None else 0
    for_ = f", for {age_words((until_ms - by.at_ms) / 1000.0)}" if until_ms else ""
    said = f"{what}: {of.said}{for_}"
    record = Control(
        scope, of.kind, of.active, by.who, by.why, by.at_ms, until_ms,
        version=version + 1, command_id=by.command_id,
    )  # fmt: skip
    if before is not None and _repeats(record, before, by, expected == version - 1):
        return before, said
    if expected is not None and expected > version:
        raise Conflict(f"{what}: version {expected} is not known here yet; it is {version}")
    if expected is not None and expected != version:
        raise taken(record, before, by.at_ms)
    if not (of.active or of.anytime) and (before is None or not before.active):
        raise Conflict(f"{what}: not {of.before} by that name; see shoal status", before)
    return record, said


def verdict_record(
    command: str,
    number: int,
    by: Signed,
    decisions: Sequence[Decision],
    controls: Iterable[Control],
    leader_token: int | None = None,
    lasting: str = "",
) -> tuple[Control, str]:
    """The record that approves or rejects proposal `number`, and its result as text. If the same
    person gave the same answer before, that record is returned.

    decisions: the last decisions, oldest first. controls: the command in force of each subject.
    leader_token: of the proposal, None for the last proposal of this number. lasting: how long
    further changes of the model need no approval, "" = each needs one. Conflict: the proposal
    is not open.
    """
    found = next(
        (
            d
            for d in reversed(decisions)
            if d.number == number and leader_token in (None, d.leader_token)
        ),
        None,
    )
    name = f"#{number}"
    told = {c.key: c for c in controls if c.kind == "verdict"}
    if found is None or not found.expires_ms:
        waiting = (d for d in decisions if d.expires_ms > by.at_ms)
        keys = {str(d.number): verdict_key(d.leader_token, d.number) for d in waiting}
        open_ = [number for number, key in keys.items() if key not in told][-5:]
        raise Conflict(f"{name}: no such proposal; open: {', '.join(open_) or 'none'}")
    until_ms = 0
    if lasting:
        until_ms = by.at_ms + int(units.named_duration_s("--for", lasting) * 1000)
    record = Control(
        found.model, "verdict", COMMANDS[command].active, by.who, by.why, by.at_ms, until_ms,
        proposal=found.number, leader_token=found.leader_token, version=1,
        command_id=by.command_id,
    )  # fmt: skip
    said = f"{name} {found.model}: {change_words(found.change)}: {COMMANDS[command].said}"
    before = told.get(record.key)
    if before is not None:
        if _repeats(record, before, by, True):
            return before, said
        raise taken(record, before, by.at_ms)
    late = too_late(found, decisions, by.at_ms)
    if late is not None:
        raise late
    return record, said


def taken(record: Control, first: Control | None, now_ms: int) -> Conflict:
    """The refusal of `record`, because `first` was before it. None: no command was."""
    name = f"#{record.proposal}" if record.kind == "verdict" else record.scope
    name = "every model" if name == ALL_MODELS else name
    if first is None:
        return Conflict(f"{name}: no command is in force; its version is 0")
    why = f": {first.why}" if first.why else ""
    ago = age_words(max(0, now_ms - first.at_ms) / 1000.0)
    version = "" if first.kind == "verdict" else f" (version {first.version})"
    return Conflict(f"{name}: {done_words(first)} already by {first.who} {ago} ago{why}{version}",
                    first)  # fmt: skip


def too_late(proposal: Decision, decisions: Sequence[Decision], now_ms: int) -> Conflict | None:
    """The refusal of an answer to `proposal`, if it or an update of it was decided, or if it
    expired. decisions: oldest first."""
    name, token = f"#{proposal.number}", proposal.leader_token
    later = list(takewhile(lambda one: one is not proposal, reversed(decisions)))
    for one in reversed(later):
        if one.model == proposal.model and one.proposal and one.leader_token >= token:
            return Conflict(f"{name}: {one.reason}")
    if now_ms >= proposal.expires_ms:
        ago = age_words((now_ms - proposal.expires_ms) / 1000.0)
        return Conflict(f"{name}: expired {ago} ago; the next one gets a number of its own")
    return None


def done_words(control: Control) -> str:
    """The state that `control` made: "approved", "paused" or "resumed"."""
    states = {(of.kind, of.active): of.said for of in COMMANDS.values()}
    return states[control.kind, control.active].partition(";")[0]


def _repeats(record: Control, before: Control, by: Signed, is_late: bool) -> bool:
    """Whether `record` is a repetition of `before`: the same command id, or, if it came late, the
    same command by the same person."""
    if before.command_id and record.command_id == before.command_id:
        return True
    same = (record.who, record.active) == (before.who, before.active)
    lasting = [one.until_ms and one.until_ms - one.at_ms for one in (record, before)]
    why = record.kind == "verdict" or record.why == before.why
    return is_late and by.is_person and same and why and lasting[0] == lasting[1]
