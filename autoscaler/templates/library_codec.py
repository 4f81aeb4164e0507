"""Encodes libraries as bytes and decodes them: a NumPy archive with a JSON header, no pickles."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from autoscaler.domain.validation import InvalidValue
from autoscaler.templates.library import Library, count_nodes
from autoscaler.templates.library_request import LibraryRequest
from autoscaler.templates.partitions import MAX_NODES

FORMAT = "shoal-library-1"
_ARRAYS = {
    "throughput_req_per_s": (np.dtype("<f8"), ()),
    "uncertain": (np.dtype("|b1"), ()),
    "nodes": (np.dtype("|i1"), (MAX_NODES,)),
    "members": (np.dtype("|i1"), (MAX_NODES,)),
    "layers": (np.dtype("<i2"), (MAX_NODES,)),
}


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a library file. templates: number of rows. visited: number of multisets that
    the sweep visited."""

    content_hash: str
    templates: int
    visited: int
    request: dict[str, Any]


def encode(library: Library) -> bytes:
    """The file content for `library`; equal libraries give equal bytes."""
    header = {
        "format": FORMAT,
        "content_hash": library.content_hash,
        "templates": len(library),
        "visited": library.visited,
        "request": orjson.loads(library.request.as_json()),
    }
    arrays = {
        name: np.ascontiguousarray(getattr(library, name), dtype=dtype)
        for name, (dtype, _) in _ARRAYS.items()
    }
    out = io.BytesIO()
    np.savez_compressed(
        out, header=np.frombuffer(orjson.dumps(header), np.uint8), **_as_any(arrays)
    )
    return out.getvalue()


def read_header(data: bytes) -> Header:
    """The header of `data`. Raises InvalidValue if `data` is not a library file."""
    return _header(_open(data))


def decode(data: bytes, request: LibraryRequest, expected_hash: str) -> Library:
    """The library in `data`, if it was built from `request` and has the content hash
    `expected_hash`.

    Raises InvalidValue if it was built from another request (the error names the fields that
    differ) or if the file is damaged.
    """
    archive = _open(data)
    header = _header(archive)
    if header.content_hash != expected_hash:
        differing = _differing_paths(orjson.loads(request.as_json()), header.request)
        why = f"differs in {', '.join(differing)}" if differing else "performance model changed"
        raise InvalidValue(
            "library content hash", header.content_hash[:12], f"{expected_hash[:12]} ({why})"
        )
    arrays = {name: _array(archive, name, header.templates) for name in _ARRAYS}
    nodes = arrays["nodes"]
    _check_placements(request, arrays)
    return Library(
        request=request,
        content_hash=header.content_hash,
        visited=header.visited,
        node_counts=count_nodes(nodes, len(request.configs)),
        throughput_req_per_s=arrays["throughput_req_per_s"],
        uncertain=arrays["uncertain"],
        nodes=nodes,
        members=arrays["members"],
        layers=arrays["layers"],
    )


def _as_any(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    return dict(arrays)


def _open(data: bytes) -> Any:
    if data[:4] != b"PK\x03\x04":
        raise InvalidValue("library file", data[:8], f"a {FORMAT} archive")
    try:
        return np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # numpy raises many kinds of exceptions, see `_read`
        raise InvalidValue("library file", data[:8], f"a {FORMAT} archive ({error})") from None


def _read(archive: Any, name: str) -> npt.NDArray[Any]:
    try:
        found: npt.NDArray[Any] = archive[name]
    except Exception as error:
        # On a damaged archive, zipfile, zlib and numpy raise many kinds of exceptions.
        raise InvalidValue(f"library file: {name}", "unreadable", f"an array ({error})") from None
    return found


def _header(archive: Any) -> Header:
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InvalidValue("library file", "one bare array", f"a {FORMAT} archive")
    try:
        raw = orjson.loads(_read(archive, "header").astype(np.uint8).tobytes())
    except (orjson.JSONDecodeError, ValueError) as error:
        raise InvalidValue("library file: header", "unreadable", f"JSON ({error})") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise InvalidValue("library file: format", raw, FORMAT)
    templates, visited = raw.get("templates"), raw.get("visited")
    given = raw.get("request")
    if not isinstance(templates, int) or not isinstance(visited, int) or templates < 0:
        raise InvalidValue("library file: templates", templates, "a count")
    if not isinstance(given, dict) or not isinstance(raw.get("content_hash"), str):
        raise InvalidValue("library file: request", given, "the request it was built from")
    return Header(raw["content_hash"], templates, visited, given)


def _array(archive: Any, name: str, templates: int) -> npt.NDArray[Any]:
    dtype, tail = _ARRAYS[name]
    found = _read(archive, name)
    if found.dtype != dtype or found.shape != (templates, *tail):
        raise InvalidValue(
            f"library file: {name}",
            (str(found.dtype), found.shape),
            f"{dtype} {(templates, *tail)}",
        )
    return found


def _check_placements(request: LibraryRequest, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Raise InvalidValue unless every row is a placement: its stages divide its nodes, and its
    layers add up to those of the model."""
    nodes, members, layers = arrays["nodes"], arrays["members"], arrays["layers"]
    rates = arrays["throughput_req_per_s"]
    present = nodes >= 0
    bits = (present * (1 << np.arange(MAX_NODES))).sum(axis=1)
    used = np.bitwise_or.reduce(members.astype(np.int64), axis=1)
    good = (
        np.isfinite(rates)
        & (rates > 0)
        & ((nodes >= -1) & (nodes < len(request.configs))).all(axis=1)
        & (used == bits)
        & (members.astype(np.int64).sum(axis=1) == bits)
        & (members >= 0).all(axis=1)
        & ((layers > 0) == (members > 0)).all(axis=1)
        & (layers.astype(np.int64).sum(axis=1) == request.model.layers)
    )
    if not good.all():
        row = int(np.argmin(good))
        raise InvalidValue(
            f"library file: template {row}", nodes[row].tolist(), "a placement of the model"
        )


def _differing_paths(wanted: Any, found: Any, path: str = "") -> list[str]:
    """Paths at which two JSON values differ, at most five."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        names = sorted({*wanted, *found})
        paths = [
            p
            for name in names
            for p in _differing_paths(
                wanted.get(name), found.get(name), f"{path}.{name}".lstrip(".")
            )
        ]
        return paths[:5]
    return [] if wanted == found else [path]
