"""One segment of a decision log while it is written: a file, its compression and its chain."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from streams.decision_log.log_lines import FORM, Damage, Head, Kind, Line, read_lines, write_line
from topics.keys import Keys
from topics.record_chain import NO_RECORD, head_signature
from topics.storage.durable_files import AppendFile, cut_file, sync_folder

SUFFIX = ".jsonl.gz"
_PLAIN = ":@+"  # not quoted, because file names may contain them
_MOST_SAME_NAMES = 1000


class LastRecord(NamedTuple):
    """The last record of a chain. number: -1 if there is none."""

    number: int = -1
    hash: str = NO_RECORD
    at_ms: int = 0


class ChainEnd:
    """The end of the chain of one controller, which its writer moves."""

    def __init__(self, last: LastRecord = LastRecord()) -> None:  # noqa: B008  a frozen value
        self.last = last


class SegmentFile:
    """A new segment of `controller` in `folder`. `end` is the end of the chain; a record that was
    written moves it.

    OSError: the disk failed. ValueError: a value has no JSON form. After an error in any of the
    methods, call `abandon`.
    """

    def __init__(
        self, folder: Path, controller: str, keys: Keys, end: ChainEnd, at_ms: int
    ) -> None:
        self._controller, self._keys, self._end = controller, keys, end
        self._packer: Any = None
        self.path, self._file = _create(folder, controller, at_ms)

    def start(self, at_ms: int, body: object, lost: int = 0) -> None:
        """Write a start, in a new member. lost: ticks that were lost since the last record."""
        rest = self._packer.flush(zlib.Z_FINISH) if self._packer is not None else b""
        self._packer = zlib.compressobj(6, zlib.DEFLATED, 31)
        last, is_new = self._end.last, self.size == 0
        head = Head(
            last.number + 1, Kind.START, at_ms, FORM, last.hash, self._sign(), lost,
            last.at_ms if lost else 0,
        )  # fmt: skip
        self._put(head, body, before=rest)
        self._file.sync()
        if is_new:
            sync_folder(self.path.parent)

    def tick(self, at_ms: int, body: object) -> None:
        """Write a tick."""
        self._put(Head(self._end.last.number + 1, Kind.TICK, at_ms), body)

    def close(self) -> None:
        """Write the end with its signature, and close the file."""
        last = self._end.last
        head = Head(last.number + 1, Kind.END, last.at_ms, signature=self._sign())
        self._put(head, {}, flush=zlib.Z_FINISH)
        self._file.sync()
        self._file.close()

    def abandon(self) -> tuple[Path, int] | None:
        """Close the file after an error, with the records that it has. Returns the path and the
        size to which `cut_file` must still reduce the file, None if it is in order. Otherwise a
        part of a record, or a whole one that counts as not written, could follow the last one."""
        torn = self._file.torn
        with contextlib.suppress(OSError):
            self._file.close()
        if not torn and self._file.size:
            return None
        try:
            cut_file(self.path, self._file.size)
        except OSError:
            return self.path, self._file.size
        return None

    @property
    def size(self) -> int:
        """Bytes of the complete records."""
        return self._file.size

    def _sign(self) -> str:
        last = self._end.last
        return head_signature(self._keys, self._controller, last.number + 1, last.hash)

    def _put(
        self, head: Head, body: object, before: bytes = b"", flush: int = zlib.Z_SYNC_FLUSH
    ) -> None:
        # Flush every line, because the last observation before a crash is the most important one.
        line, made = write_line(head, body, self._end.last.hash)
        self._file.append(before + self._packer.compress(line) + self._packer.flush(flush))
        self._end.last = LastRecord(head.number, made, head.at_ms)


def segment_paths(folder: Path, controller: str | None = None) -> list[Path]:
    """The segments in `folder`, of `controller` or of all, in the order of their start times."""
    paths = [
        path
        for path in folder.glob(f"*{SUFFIX}")
        if controller is None or controller_of(path) == controller
    ]
    return sorted(paths, key=lambda path: (started_ms(path), path.name))


def chain_end(folder: Path, controller: str) -> ChainEnd:
    """The end of the chain that an earlier process of `controller` wrote to `folder`. Files that
    cannot be read are left out."""
    last: tuple[int, Path] | None = None
    for path in segment_paths(folder, controller):
        with contextlib.suppress(OSError):
            first = next((one for one in read_lines(path) if isinstance(one, Line)), None)
            if first is not None and (last is None or first.head.number > last[0]):
                last = first.head.number, path
    end = LastRecord()
    if last is not None:
        with contextlib.suppress(OSError):
            for line in read_lines(last[1]):
                if isinstance(line, Damage):
                    continue
                known = line.head.previous if line.head.kind is Kind.START else end.hash
                if line.follows(known):
                    end = LastRecord(line.head.number, line.hash, line.head.at_ms)
    return ChainEnd(end)


def controller_of(path: Path) -> str:
    """Name of the controller that wrote the segment, from the file name."""
    return unquote(path.name.removesuffix(SUFFIX).split("-", 1)[-1])


def started_ms(path: Path) -> int:
    """Start time of the segment in `path`, from its file name; 0 if the name has none."""
    head = path.name.split("-", 1)[0]
    return int(head) if head.isascii() and head.isdigit() else 0


def _create(folder: Path, controller: str, at_ms: int) -> tuple[Path, AppendFile]:
    """A file with a name that no other process has taken, for example another controller of the
    same name."""
    for later_ms in range(_MOST_SAME_NAMES):
        path = folder / f"{at_ms + later_ms}-{quote(controller, _PLAIN)}{SUFFIX}"
        with contextlib.suppress(FileExistsError):
            return path, AppendFile.create(path)
    raise FileExistsError(f"{path}: exists")
