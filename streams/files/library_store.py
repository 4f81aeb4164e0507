"""Store template libraries on disk: build each library at first use, cache it per user, and load it
later.

If the cache folder is unusable, Shoal continues without a cache and reports a notice.
`autoscaler.templates` builds and checks libraries.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.profile import Profile
from autoscaler.templates.build_library import build_library
from autoscaler.templates.library import Library
from autoscaler.templates.library_codec import Header, decode, encode, read_header
from autoscaler.templates.library_request import LibraryRequest, content_hash
from autoscaler.templates.throughput_table import throughput_table, uncertain_configs
from streams.files.user_errors import UserError
from streams.terminal_console import SafeConsole

SUFFIX = ".shoal-library.npz"
MOST_BYTES = 512 * 1024 * 1024
"""Maximum size of the cache; the least recently used libraries are removed first."""

Step = Callable[[str, int, int], None]
"""Progress of a build: (library, multisets finished, total number of multisets)."""


@dataclass(frozen=True, slots=True)
class LoadedLibraries:
    """Libraries in the requested order, the number of built libraries, and
    notices about the cache.
    """

    libraries: tuple[Library, ...]
    built: int
    notices: tuple[str, ...] = ()


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/shoal/libraries`; under `~/.cache` if that variable is unset or relative."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return base / "shoal" / "libraries"


def load_or_build(
    requests: Sequence[LibraryRequest],
    profile: Profile,
    folder: Path | None = None,
) -> LoadedLibraries:
    """Load the libraries of `requests` from `folder` (default: the user's cache), and build missing
    libraries.

    Shows a progress bar on standard error during a build if standard error is a terminal. Built
    libraries are stored in the cache. A damaged file is built again; a folder that is not writable
    gives a notice, not an error.
    """
    place = cache_folder() if folder is None else folder
    console = SafeConsole(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    found: list[Library] = []
    notices: list[str] = []
    built = 0
    silent = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=silent) as bar:
        task = None
        for number, request in enumerate(requests, start=1):
            table = throughput_table(request, profile)
            wanted = content_hash(request, table)
            path = place / file_name(request, wanted)
            library = _load(path, request, wanted, notices)
            if library is None:
                text = f"library {number} of {len(requests)}: {request.name}"
                if task is None:
                    task = bar.add_task(text)
                bar.update(task, description=text, completed=0, total=None)
                bar_task = task
                library = build_library(
                    request,
                    table,
                    uncertain_configs(request, profile),
                    lambda done, total, t=bar_task: bar.update(  # type: ignore[misc]
                        t, completed=done, total=total
                    ),
                )
                built += 1
                _save(path, encode(library), notices)
            found.append(library)
    return LoadedLibraries(tuple(found), built, tuple(dict.fromkeys(notices)))


def file_name(request: LibraryRequest, wanted: str) -> str:
    """Readable file name of a library; it changes with every input of the library."""
    model = re.sub(r"[^A-Za-z0-9.-]+", "-", request.model.name).strip("-.")[:60]
    return f"{model}-{request.phase}-{request.engine.name}-{wanted[:16]}{SUFFIX}"


def read_library_header(path: Path) -> Header:
    """Build inputs of the library in `path`. UserError if the file is not a library."""
    try:
        return read_header(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except InvalidValue as error:
        raise UserError(f"{path}: {error}") from None


def _load(path: Path, request: LibraryRequest, wanted: str, notices: list[str]) -> Library | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        notices.append(f"{path}: cannot be read ({error.strerror}); built again")
        return None
    try:
        library = decode(data, request, wanted)
    except InvalidValue as error:
        notices.append(f"{path}: {error}; built again")
        return None
    with contextlib.suppress(
        OSError
    ):  # A failure is harmless, because the file time only decides which library is removed first.
        os.utime(path)
    return library


def _save(path: Path, data: bytes, notices: list[str]) -> None:
    """Write `data` through a temporary file, so that a reader never sees an incomplete library."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".building-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        _trim(path.parent, keep=path)
    except OSError as error:
        notices.append(f"{path.parent}: not kept there ({error.strerror})")


def _trim(folder: Path, keep: Path) -> None:
    """Remove the least recently used libraries beyond MOST_BYTES, but never `keep`."""
    files = [(entry.stat(), entry) for entry in folder.glob(f"*{SUFFIX}")]
    held = sum(stat.st_size for stat, _ in files)
    for stat, entry in sorted(files, key=lambda item: item[0].st_mtime):
        if held <= MOST_BYTES:
            return
        if entry != keep:
            entry.unlink(missing_ok=True)
            held -= stat.st_size
