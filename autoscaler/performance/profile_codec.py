"""The JSON form of a profile, and its content hash. Decoding is strict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from autoscaler.domain.validation import InvalidValue, whole
from autoscaler.performance.efficiency import Efficiency, EngineFactors
from autoscaler.performance.measured_tables import MeasuredTable
from autoscaler.performance.profile import Profile, Source

FORMAT_VERSION = 1
_KEYS = {
    "version",
    "content_hash",
    "default",
    "default_pcie",
    "gpus",
    "like",
    "engines",
    "tables",
    "sources",
}
_DIGITS = 5
_Factors = TypeVar("_Factors", Efficiency, EngineFactors)


def make_profile(
    default: Efficiency,
    default_pcie: Efficiency,
    gpus: Mapping[str, Efficiency] | None = None,
    like: Mapping[str, str] | None = None,
    engines: Mapping[str, EngineFactors] | None = None,
    tables: Sequence[MeasuredTable] = (),
    sources: Sequence[Source] = (),
) -> Profile:
    """A profile with these contents and its content hash. Factors are rounded as in the file."""
    draft = Profile(
        FORMAT_VERSION,
        "",
        _rounded(default),
        _rounded(default_pcie),
        {name: _rounded(row) for name, row in sorted((gpus or {}).items())},
        dict(sorted((like or {}).items())),
        {name: _rounded(row) for name, row in sorted((engines or {}).items())},
        tuple(tables),
        tuple(sources),
    )
    body = json.dumps(_body(draft), sort_keys=True, separators=(",", ":"))
    return replace(draft, content_hash=hashlib.sha256(body.encode()).hexdigest())


def encode(profile: Profile) -> str:
    """The JSON text of `profile`."""
    body = _body(profile)
    lists = {key: body.pop(key) for key in ("tables", "sources")}
    text = json.dumps({"content_hash": profile.content_hash, **body}, indent=1)
    parts = [text.rstrip()[:-1].rstrip()]
    for key, items in lists.items():
        inner = ",\n".join("  " + json.dumps(item, separators=(",", ":")) for item in items)
        parts.append(f' "{key}": [\n{inner}\n ]' if items else f' "{key}": []')
    return ",\n".join(parts) + "\n}\n"


def decode(text: str) -> Profile:
    """The profile in the JSON text `text`. Raises InvalidValue, which names the wrong part."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidValue(
            "profile", text[:40], f"JSON ({error.msg}, line {error.lineno})"
        ) from None
    if not isinstance(raw, dict) or set(raw) != _KEYS:
        given = sorted(raw) if isinstance(raw, dict) else type(raw).__name__
        raise InvalidValue("profile", given, f"an object with {', '.join(sorted(_KEYS))}")
    whole("profile.version", raw["version"], FORMAT_VERSION, FORMAT_VERSION)
    profile = make_profile(
        _factors(Efficiency, "default", raw["default"]),
        _factors(Efficiency, "default_pcie", raw["default_pcie"]),
        {n: _factors(Efficiency, f"gpus.{n}", v) for n, v in _object("gpus", raw["gpus"]).items()},
        {n: str(v) for n, v in _object("like", raw["like"]).items()},
        {
            n: _factors(EngineFactors, f"engines.{n}", v)
            for n, v in _object("engines", raw["engines"]).items()
        },
        [_table(i, row) for i, row in enumerate(raw["tables"])],
        [_source(i, row) for i, row in enumerate(raw["sources"])],
    )
    if raw["content_hash"] != profile.content_hash:
        raise InvalidValue(
            "profile.content_hash", raw["content_hash"], f"{profile.content_hash} for this content"
        )
    return profile


def _body(profile: Profile) -> dict[str, Any]:
    return {
        "version": profile.version,
        "default": asdict(profile.default),
        "default_pcie": asdict(profile.default_pcie),
        "gpus": {name: asdict(row) for name, row in profile.gpus.items()},
        "like": dict(profile.like),
        "engines": {name: asdict(row) for name, row in profile.engines.items()},
        "tables": [asdict(table) for table in profile.tables],
        "sources": [asdict(source) for source in profile.sources],
    }


def _rounded(factors: _Factors) -> _Factors:
    """Factors rounded as in the file, so that a profile equals its decoded file."""
    return type(factors)(
        **{f.name: float(f"{getattr(factors, f.name):.{_DIGITS}g}") for f in fields(factors)}
    )


def _object(name: str, raw: object) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise InvalidValue(f"profile.{name}", raw, "an object")
    return raw


def _factors(kind: type[_Factors], name: str, raw: object) -> _Factors:
    known = {item.name for item in fields(kind)}
    if not isinstance(raw, dict) or set(raw) != known:
        raise InvalidValue(f"profile.{name}", raw, f"an object with {', '.join(sorted(known))}")
    return kind(**raw)


def _table(index: int, raw: object) -> MeasuredTable:
    try:
        row = dict(raw)  # type: ignore[call-overload]
        layers, hidden, vocab, experts = row["architecture"]
        return MeasuredTable(
            (int(layers), int(hidden), int(vocab), int(experts)),
            str(row["weight_dtype"]),
            str(row["gpu"]),
            int(row["tp"]),
            _rows(row["prefill"]),
            _rows(row["decode"]),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidValue(f"profile.tables[{index}]", str(error), "a measured table") from None


def _rows(raw: Any) -> tuple[tuple[float, float, float], ...]:
    found = tuple((float(a), float(b), float(c)) for a, b, c in raw)
    if any(not 0.0 < value < float("inf") for row in found for value in row):
        raise ValueError("a length, batch or time that is not above 0")
    return found


def _source(index: int, raw: object) -> Source:
    try:
        row = dict(raw)  # type: ignore[call-overload]
        return Source(str(row["model"]), str(row["system"]), int(row["points"]))
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidValue(f"profile.sources[{index}]", str(error), "a source") from None
