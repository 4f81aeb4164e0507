"""A service that stands for several models, as a shoal.yaml declares it, with its scores.

    auto:
      models: [mini, chat]                 # easiest requests first
      quality: {file: scores.csv, at_least: 90}
      req_per_s: 20

scores.csv has the columns `score` (of the router, rising with difficulty) and one per model: the
quality of its answer to that request. Sampled requests, one a row.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from autoscaler.domain.checks import InvalidValue
from autoscaler.planning.quality import QualityRoute
from streams.files import units
from streams.files.csv_rows import Row, read_rows
from streams.files.errors import UserError
from streams.files.yamltree import ConfigError, Section


def read_route(name: str, section: Section, declared: tuple[str, ...]) -> QualityRoute:
    """The route that `section` declares. declared: models it may name. ConfigError or UserError."""
    models = section.take("models", units.texts)
    for model in models:
        if model not in declared:
            raise section.error("models", f"{model} is not declared; allowed: {_or(declared)}")
    quality = section.section("quality", required=True)
    assert quality is not None  # noqa: S101  required
    at_least = quality.take("at_least", units.number(-1e12, 1e12))
    file = Path(section.file).parent / quality.take("file", units.text)
    quality.finish()
    rate = section.take("req_per_s", units.number(1e-9, 1e9))
    rows = read_rows(file)
    columns = ("score", *models)
    missing = [column for column in columns if column not in rows[0]]
    if missing:
        raise UserError(
            f"{file}:1: column {missing[0]!r} is missing; expected {', '.join(columns)}"
        )
    cells = np.array([[_number(file, n, row, c) for c in columns] for n, row in enumerate(rows, 2)])
    try:
        return QualityRoute(name, models, cells[:, 0], cells[:, 1:], at_least, rate)
    except InvalidValue as error:
        raise ConfigError(section.file, section.line, section.path, str(error)) from error


def _number(file: Path, line: int, row: Row, column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{file}:{line}: {column}: {row[column]!r} is not a finite number")
    return value


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(names)
