"""Writes that are complete or have no effect: replacing a whole file, and appending a record.

A write may fail in the middle (a full disk, an I/O error, fewer bytes than asked for), and the
process may be killed between two steps. A replaced file then has its old or its new content. An
appended file has its earlier records, and possibly the beginning of one more at its end.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from topics.storage.private_files import private_descriptor

DRAFT = ".new"
"""Suffix of a file that is being written and will replace the file without it."""


def replace_file(path: Path, data: bytes, sync: bool = True) -> None:
    """Replace the content of `path` with `data`. Raises OSError; `path` then has its old or its new
    content.

    sync: wait until the disk has the data. If not, a loss of power may leave an empty file.
    """
    draft = path.with_name(path.name + DRAFT)
    descriptor = private_descriptor(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            _write_all(descriptor, data)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(draft, path)  # noqa: PTH105  the functions of `os` are replaced in tests
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108  free the space of the draft
        raise
    if sync:
        sync_folder(path.parent)


def cut_file(path: Path, size: int) -> None:
    """Reduce `path` to its first `size` bytes, and delete it if that is nothing. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if size:
            os.truncate(path, size)
        else:
            os.unlink(path)  # noqa: PTH108  as above


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of the files in `folder`. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendFile:
    """A file that one process appends records to.

    size: bytes of its complete records. torn: whether a part of an incomplete record may follow
    them.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size
        self.torn = False

    @classmethod
    def create(cls, path: Path) -> AppendFile:
        """Create `path`. Raises OSError, and FileExistsError if there is such a file."""
        return cls(private_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), 0)

    @classmethod
    def open(cls, path: Path) -> AppendFile:
        """Open `path`, which may exist. Raises OSError."""
        descriptor = private_descriptor(path, os.O_RDWR | os.O_CREAT)
        return cls(descriptor, os.lseek(descriptor, 0, os.SEEK_END))

    def append(self, record: bytes) -> None:
        """Append `record`. Raises OSError; the file then keeps its complete records. A part of this
        record that cannot be removed at once is removed before the next one."""
        if self.torn:
            self._cut()
        try:
            _write_all(self._descriptor, record)
        except OSError:
            self.torn = True
            with contextlib.suppress(OSError):
                self._cut()
            raise
        self.size += len(record)

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self.size)
        os.lseek(self._descriptor, self.size, os.SEEK_SET)
        self.torn = False

    def last_byte(self) -> bytes:
        """The last byte of a file of `open`, b"" if it is empty. Raises OSError."""
        return os.pread(self._descriptor, 1, self.size - 1) if self.size else b""

    def sync(self) -> None:
        """Wait until the disk has all records. Raises OSError."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. Raises OSError."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; the system may take fewer bytes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
