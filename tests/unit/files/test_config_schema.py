"""The JSON Schema accepts the files that the reader accepts, and refuses invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from streams.files.config_schema import json_schema
from streams.files.shoal_yaml import load_config

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy" / "examples" / "four-models.yaml"
FILES = sorted(
    path
    for folder in ("deploy/examples", "streams/data", "loadtests", "tests/unit")
    for path in (ROOT / folder).rglob("*.yaml")
    if "\nregions:" in path.read_text()
)


def problems(value: Any) -> list[str]:
    return [
        error.message for error in jsonschema.Draft202012Validator(json_schema()).iter_errors(value)
    ]


def test_the_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_that_the_reader_accepts_fits_the_schema(path: Path) -> None:
    load_config(path)
    assert problems(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ((), {"modes": "act"}),
        (("policy",), {"replan_every": 300}),
        (("policy",), {"sensitivity": "max"}),
        (("models", "chat"), {"slo": {"tpot": "50ms"}}),
        (("models", "chat"), {"min": -1}),
        (("models", "chat"), {"models": ["a", "b"]}),
        (("regions", "eu-west", "l40s"), {"per_node": 17}),
        (("engines", "fp8"), {"args": "--quantization=fp8"}),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(
    place: tuple[str, ...], change: dict[str, Any]
) -> None:
    value = yaml.safe_load(EXAMPLE.read_text())
    section = value
    for name in place:
        section = section[name]
    section.update(change)
    assert problems(value)


def test_a_section_without_content_fits() -> None:
    value = yaml.safe_load(EXAMPLE.read_text())
    value["policy"] = None
    assert problems(value) == []
