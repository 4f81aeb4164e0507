"""Refuse a declared model that fits on no declared GPU; the error names its line in the file.

`autoscaler.planning.memory_fit` computes the fit.
"""

from __future__ import annotations

from pathlib import Path

from autoscaler.explain.reason_texts import text
from autoscaler.planning.memory_fit import misfits
from streams.files.shoal_yaml import Config
from streams.files.yaml_tree import ConfigError, read


def refuse_misfits(config: Config) -> None:
    """ConfigError for the first model of `config` that fits on no node slice of its pools."""
    for misfit in misfits(config.cluster):
        root, _ = read(Path(config.path))
        models = root.section("models", required=True)
        model = models.section(misfit.model, required=True) if models else None
        line = model.line_of("max_len") if model else 0
        raise ConfigError(config.path, line, f"models.{misfit.model}", text(misfit.reason()))
