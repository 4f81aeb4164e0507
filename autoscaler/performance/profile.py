"""A profile: calibrated efficiency factors per GPU and what is known to be uncertain.

Owns `Profile`, its JSON form and the packaged default. Knows no formulas of time. Pure Python.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from autoscaler.domain.checks import InvalidValue, whole
from autoscaler.domain.models import ModelSpec
from autoscaler.performance.efficiency import DEFAULT_EFFICIENCY, Efficiency

FORMAT_VERSION = 1
_PACKAGED = "profile_v1.json"


@dataclass(frozen=True, slots=True)
class Profile:
    """Efficiency factors per GPU type, with a default for GPUs never measured.

    gpus: (GPU name, factors) pairs, sorted by name.  measured_models: models with points behind
    the factors.  content_hash: SHA-256 over everything else, so that what was built from a profile
    can say which.
    """

    version: int
    content_hash: str
    default: Efficiency
    gpus: tuple[tuple[str, Efficiency], ...] = ()

    def efficiency(self, gpu: str) -> Efficiency:
        """Factors of the GPU called `gpu`; the default where it was never measured."""
        for name, factors in self.gpus:
            if name == gpu:
                return factors
        return self.default

    def measured(self, gpu: str) -> bool:
        """Whether factors of this very GPU type were measured."""
        return any(name == gpu for name, _ in self.gpus)

    def uncertain(self, model: ModelSpec, gpu: str) -> bool:
        """Whether estimates for `model` on `gpu` should be shown as uncertain."""
        return model.is_moe or not self.measured(gpu)


def make_profile(
    default: Efficiency = DEFAULT_EFFICIENCY, gpus: Mapping[str, Efficiency] | None = None
) -> Profile:
    """A profile of these factors, with its content hash."""
    pairs = tuple(sorted((gpus or {}).items()))
    draft = Profile(FORMAT_VERSION, "", default, pairs)
    body = json.dumps(_body(draft), sort_keys=True, separators=(",", ":"))
    return Profile(FORMAT_VERSION, hashlib.sha256(body.encode()).hexdigest(), default, pairs)


def encode(profile: Profile) -> str:
    """The JSON text of `profile`."""
    return json.dumps({"content_hash": profile.content_hash, **_body(profile)}, indent=1) + "\n"


def decode(text: str) -> Profile:
    """The profile of a JSON text; InvalidValue names what is wrong with it."""
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidValue(
            "profile", text[:40], f"JSON ({error.msg} in line {error.lineno})"
        ) from None
    if not isinstance(raw, dict):
        raise InvalidValue("profile", type(raw).__name__, "a JSON object")
    whole("profile.version", raw.get("version", 0), FORMAT_VERSION, FORMAT_VERSION)
    default = _factors("default", raw.get("default"))
    gpus = raw.get("gpus")
    if not isinstance(gpus, dict):
        raise InvalidValue("profile.gpus", gpus, "an object of factors per GPU")
    profile = make_profile(default, {n: _factors(f"gpus.{n}", row) for n, row in gpus.items()})
    if raw.get("content_hash") != profile.content_hash:
        raise InvalidValue(
            "profile.content_hash",
            raw.get("content_hash"),
            f"{profile.content_hash} (edited by hand?)",
        )
    return profile


@lru_cache(maxsize=1)
def default_profile() -> Profile:
    """The profile that ships with the package; plain defaults where none was packaged."""
    path = resources.files("autoscaler").joinpath("data", _PACKAGED)
    if not path.is_file():
        return make_profile()
    return decode(path.read_text(encoding="utf-8"))


def _body(profile: Profile) -> dict[str, Any]:
    return {
        "version": profile.version,
        "default": asdict(profile.default),
        "gpus": {name: asdict(factors) for name, factors in profile.gpus},
    }


def _factors(field: str, raw: object) -> Efficiency:
    known = set(asdict(DEFAULT_EFFICIENCY))
    if not isinstance(raw, dict) or set(raw) != known:
        raise InvalidValue(f"profile.{field}", raw, f"an object with {', '.join(sorted(known))}")
    return Efficiency(**raw)
