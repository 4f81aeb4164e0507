"""Read the architecture of a model's `source`: a catalogue name or a config.json.

`performance.architecture` interprets the keys of a config.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.catalog_names import is_published
from autoscaler.performance.checkpoint.hf_quant_config import QUANTISATION_FILE, with_quantisation
from autoscaler.performance.config_json import architecture_of
from streams.files.csv_rows import cause_of

_STARTS = ("./", "../", "/", "~/")


_MOST_BYTES = 4_000_000


def is_file(source: str) -> bool:
    """Whether `source` names a file (./config.json, /models/config.json) rather than a model."""
    return source.startswith(_STARTS) or source.endswith(".json")


def facts_taken(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Models whose facts come from another catalogue entry, as (model, name, catalogue entry).

    Their names are not in the catalogue.
    """
    for service in cluster.services:
        name = service.architecture.name
        if service.graph is None and not is_file(name):
            entry = catalog.entry_name(name)
            if entry.lower() != name.lower():
                yield service.model, name, entry


def uncertain_facts(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Items of `facts_taken` whose name is not a published variant of the entry.

    The name is usually a fine-tune, but may be misspelt.
    """
    return (one for one in facts_taken(cluster) if not is_published(*one[1:]))


def facts_words(name: str, entry: str) -> str:
    """An item of `uncertain_facts` as a sentence."""
    return f"{name} is not in the catalogue; planned with the facts of {entry}"


def architecture(source: str, folder: Path, field: str = "source") -> ModelSpec:
    """The architecture of `source`; a relative path is relative to `folder`. InvalidValue names the
    reason if there is none.

    If `source` is a folder, its config.json is read, or Mistral's params.json. An
    hf_quant_config.json in the same folder applies too.
    """
    if not is_file(source):
        return catalog.model(source, field)
    try:
        path = (folder / Path(source).expanduser()).resolve()
        path = _in_folder(path) if path.is_dir() else path
        text = _text_of(path)
        beside = path.with_name(QUANTISATION_FILE)
        if path.name == "config.json" and beside.is_file():
            text = with_quantisation(text, _text_of(beside))
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # Errors of pathlib: no home folder, NUL, a loop of links.
        why = cause_of(error) if isinstance(error, (OSError, UnicodeDecodeError)) else error
        allowed = f"a Hugging Face config.json that can be read ({why})"
        raise InvalidValue(field, source, allowed) from None
    try:
        return architecture_of(str(path), text, "it")
    except InvalidValue as error:
        raise InvalidValue(
            field, source, f"a config.json that can be understood ({error})"
        ) from None


def _in_folder(folder: Path) -> Path:
    params = folder / "params.json"
    config = folder / "config.json"
    return params if params.exists() and not config.exists() else config


def _text_of(path: Path) -> str:
    """Text of a regular file of bounded size.

    Devices and pipes are refused, because reading them may never end. Controllers read files that
    records name between two ticks.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a regular file")
    with path.open("rb") as file:
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes")
    return raw.decode()
