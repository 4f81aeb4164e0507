"""Debian's Chromium and axe-core for the tests of the console's page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.integration.fetched_folder import fetched

FETCH = Path("deploy/console/fetch.sh")
_NO_NPM = 3


@pytest.fixture(scope="session")
def tools() -> Path:
    """The browser and the accessibility checks, unpacked by the project's script.

    SHOAL_TEST_CHROMIUM: folder for them.
    """
    folder, done = fetched(FETCH, "SHOAL_TEST_CHROMIUM", "chromium")
    if done.returncode not in (0, _NO_NPM):
        pytest.skip(f"Chromium cannot be fetched: {done.stderr.decode()[-200:].strip()}")
    return folder


@pytest.fixture(scope="module")
def browser(tools: Path) -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(tools / "chromium"),
            args=["--no-sandbox", "--disable-gpu", "--js-flags=--expose-gc"],
        )
        yield started
        started.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of screenshots; SHOAL_TEST_PICTURES keeps them."""
    kept = os.environ.get("SHOAL_TEST_PICTURES")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
