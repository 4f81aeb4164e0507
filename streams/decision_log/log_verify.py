"""Check that a decision log is complete and unchanged: its chain of hashes and its signed heads.

The chain of a controller continues across its segments and restarts. A log is compared with a head
that was noted elsewhere to detect that its end was removed. Values are not decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from streams.decision_log.log_lines import Damage, Kind, Line, read_lines
from streams.decision_log.log_segment import controller_of, segment_paths
from topics.keys import Keys
from topics.record_chain import NO_RECORD, is_signed

MOST_FAULTS = 100


@dataclass(frozen=True, slots=True)
class Note:
    """A place in the log and a statement about it. at_ms: time of the last intact record before."""

    path: Path
    offset: int
    at_ms: int
    text: str


@dataclass(slots=True)
class ChainReport:
    """The result for the log of one controller. first, last: numbers of its records, -1 for none.
    hash: of the last record. signed, unsigned, wrong: numbers of heads; `wrong` ones have a
    signature that the keys at hand did not make. faults: damage and changes, in order, at most
    MOST_FAULTS. notes: harmless facts. lost: ticks that the controller could not write.
    """

    controller: str
    segments: int = 0
    records: int = 0
    first: int = -1
    last: int = -1
    first_ms: int = 0
    last_ms: int = 0
    hash: str = NO_RECORD
    signed: int = 0
    unsigned: int = 0
    wrong: int = 0
    lost: int = 0
    faults: list[Note] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)


def verify(folder: Path, keys: Keys, noted: tuple[int, str] | None = None) -> list[ChainReport]:
    """The reports on all controllers that wrote to `folder`. keys: check the signatures; without
    the cluster's key, signed heads are only counted. noted: number and hash of a record that one
    of the logs must contain."""
    paths = segment_paths(folder) if folder.is_dir() else [folder]
    reports = []
    contained = noted is None
    for controller in sorted({controller_of(path) for path in paths}):
        own = [path for path in paths if controller_of(path) == controller]
        walk = _Walk(controller, keys, noted)
        for path in sorted(own, key=_first_number):
            walk.segment(path)
        contained = contained or walk.contained
        reports.append(walk.report)
    if noted is not None and not contained:
        _not_contained(reports, folder, noted)
    return reports


def _first_number(path: Path) -> tuple[int, str]:
    """Sorts segments by the chain, because domain times of two runs may overlap."""
    try:
        first = next((one for one in read_lines(path) if isinstance(one, Line)), None)
    except OSError:
        first = None
    return (first.head.number if first is not None else -1), path.name


def _not_contained(reports: list[ChainReport], folder: Path, noted: tuple[int, str]) -> None:
    number, hash_ = noted
    longest = max(reports, key=lambda one: one.last, default=None)
    if longest is None:
        return
    why = (
        f"the log ends at record {longest.last}, before the noted record {number}: "
        "its end was removed"
        if longest.last < number
        else f"no record {number} has the noted hash {hash_}"
    )
    longest.faults.append(Note(folder, 0, longest.last_ms, why))


class _Walk:
    """Reads the segments of one controller in the order of the chain."""

    def __init__(self, controller: str, keys: Keys, noted: tuple[int, str] | None) -> None:
        self.report = ChainReport(controller)
        self.contained = False
        self._keys, self._noted = keys, noted
        self._torn: Note | None = None
        self._after_damage = False

    def segment(self, path: Path) -> None:
        """Check one file."""
        self.report.segments += 1
        try:
            for one in read_lines(path):
                if isinstance(one, Line):
                    self._line(path, one)
                elif one.torn:
                    self._torn = self._note(path, one.offset, one.why)
                else:
                    self._damage(path, one)
        except OSError as error:
            self._damage(path, Damage(0, error.strerror or str(error)))
        if self._torn is not None:
            self.report.notes.append(self._torn)
            self._torn = None

    def _note(self, path: Path, offset: int, text: str) -> Note:
        return Note(path, offset, self.report.last_ms, text)

    def _fault(self, path: Path, offset: int, text: str) -> None:
        if len(self.report.faults) < MOST_FAULTS:
            self.report.faults.append(self._note(path, offset, text))

    def _damage(self, path: Path, damage: Damage) -> None:
        self._fault(path, damage.offset, f"cannot be read: {damage.why}")
        self._after_damage = True

    def _line(self, path: Path, line: Line) -> None:
        report, head = self.report, line.head
        is_start, is_first = head.kind is Kind.START, report.records == 0
        why = ""
        if is_start and not line.follows(head.previous):
            why = f"record {head.number} was changed"
        elif is_first:
            if not is_start:
                why = f"record {head.number} is not the beginning of a member"
            elif head.number:
                text = f"begins with record {head.number}; older segments were removed"
                report.notes.append(self._note(path, line.offset, text))
        else:
            why = self._place(line)
        if why:
            self._fault(path, line.offset, why)
        self._signature(path, line)
        if head.lost:
            report.lost += head.lost
            report.notes.append(Note(
                path, line.offset, head.lost_since_ms,
                f"{head.lost} ticks before record {head.number} were not written",
            ))  # fmt: skip
        if self._noted == (head.number, line.hash):
            self.contained = True
        if is_first:
            report.first, report.first_ms = head.number, head.at_ms
        report.records += 1
        report.last, report.last_ms, report.hash = head.number, head.at_ms, line.hash
        self._after_damage = False

    def _place(self, line: Line) -> str:
        """The reason why `line` does not follow the last line; "" if it does."""
        head, last = line.head, self.report.last
        if head.number > last + 1:
            missing = head.number - last - 1
            words = f"record {last + 1} is" if missing == 1 else (
                f"records {last + 1} to {head.number - 1} are"
            )  # fmt: skip
            return f"{words} missing before record {head.number}"
        if head.number <= last:
            return (
                f"record {head.number} follows record {last}: inserted, moved, or written by a "
                "second controller of the same name"
            )
        if line.follows(self.report.hash):
            return ""
        if head.kind is Kind.START and head.previous != self.report.hash:
            return f"record {head.number} does not follow record {last}, which was changed"
        return f"record {head.number} was changed"

    def _signature(self, path: Path, line: Line) -> None:
        head, report = line.head, self.report
        if head.kind is Kind.TICK:
            return
        if not head.signature:
            report.unsigned += 1
            return
        previous = head.previous if head.kind is Kind.START else report.hash
        if not self._keys.cluster or is_signed(
            self._keys, report.controller, head.number, previous, head.signature
        ):
            report.signed += 1
        else:
            report.wrong += 1
            self._fault(
                path, line.offset,
                f"the signature of record {head.number} is wrong: changed, or another key",
            )  # fmt: skip
