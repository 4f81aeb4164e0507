"""Runs of `shoal up` for the acceptance tests. No process or file of a run outlives its test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.shoal_up import ONE_MODEL, Run

Start = Callable[..., Run]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """A function that starts a run in its own folder.

    The fixture has module scope, so runs can wait in parallel.
    """
    runs: list[Run] = []

    def begin(*options: str, config: str | None = None, trace_s: int = 3600) -> Run:
        folder: Path = tmp_path_factory.mktemp("up")
        config = ONE_MODEL if config is None else config
        runs.append(Run(folder, *options, config=config, trace_s=trace_s))
        return runs[-1]

    yield begin
    for run in runs:
        run.discard()
