"""The version of the declared settings with which an instance is launched.

A version has two parts, "ENGINE-MODEL": digests of the engine (name, image, arguments, batch size)
and of the model (source, weights, adapters, longest request). Two declarations with equal launches
have equal versions, whatever else they declare. An executor compares the second part with its own
configuration; the name of an engine already contains a digest of its profile.

Executors that launch from templates of their own report the digest of these. The version of such a
launch is "ENGINE.TEMPLATE-MODEL".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from topics.lora_adapters import Adapter

_DIGITS = 10


def launch_version(engine: str, max_num_seqs: int, model: str) -> str:
    """The version of a launch. engine: name of the engine in assignments. max_num_seqs: most
    requests in a batch. model: digest of the model, see `model_digest`."""
    return f"{_digest([engine, max_num_seqs])}-{model}"


def model_digest(source: str, weights: str, adapters: Iterable[Adapter], max_len: int) -> str:
    """Digest of the settings of a model. weights: declared path or repository, "" = source.
    max_len: tokens of the longest request."""
    loaded = sorted([adapter.name, adapter.weights, adapter.rank] for adapter in adapters)
    return _digest([source, weights, loaded, max_len])


def model_part(version: str) -> str:
    """The digest of the model in `version`; "" if the version is unknown."""
    return version.partition("-")[2]


def with_template(version: str, template: str) -> str:
    """`version` with the digest `template`, which replaces another one; "" = without one."""
    engine, dash, model = without_template(version).partition("-")
    return f"{engine}.{template}{dash}{model}" if template else f"{engine}{dash}{model}"


def without_template(version: str) -> str:
    """`version` without the digest of a template."""
    engine, dash, model = version.partition("-")
    return f"{engine.partition('.')[0]}{dash}{model}"


def template_part(version: str) -> str:
    """The digest of the template in `version`; "" without one."""
    return version.partition("-")[0].partition(".")[2]


def digest_of(texts: Iterable[str]) -> str:
    """One digest for several: the only one, or a digest of all; "" for none."""
    found = sorted(set(texts))
    return found[0] if len(found) == 1 else _digest(found) if found else ""


def _digest(content: object) -> str:
    text = json.dumps(content, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
