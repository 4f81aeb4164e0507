"""Compiled code of an image is copied to the folder where numba looks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streams.compiled_code import SOURCE, provide

CALL = (
    "from streams import compiled_code; compiled_code.provide();"
    "from autoscaler.estimate.poisson_tests import poisson_tail; poisson_tail(2, 1.0)"
)


def run(cache: Path, source: str = "") -> str:
    """Numba's report on its cache in a process that calls a kernel."""
    environment = {
        **os.environ, "NUMBA_CACHE_DIR": str(cache), "NUMBA_DEBUG_CACHE": "1", SOURCE: source,
        "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CALL], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_process_with_the_files_of_another_one_compiles_nothing(tmp_path: Path) -> None:
    image, pod = tmp_path / "image", tmp_path / "pod"
    assert "data saved" in run(image)
    found = run(pod, str(image))
    assert "data loaded" in found and "saved" not in found


def test_files_appear_whole_and_existing_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, pod = tmp_path / "image", tmp_path / "pod"
    (image / "folder").mkdir(parents=True)
    for name in ("a.nbi", "a.1.nbc", "notes.txt"):
        (image / "folder" / name).write_text("of the image")
    (pod / "folder").mkdir(parents=True)
    (pod / "folder" / "a.nbi").write_text("of the pod")
    monkeypatch.setenv(SOURCE, str(image))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(pod))
    for _ in range(2):
        provide()
        assert {one.name: one.read_text() for one in (pod / "folder").iterdir()} == {
            "a.nbi": "of the pod", "a.1.nbc": "of the image",
        }  # fmt: skip


@pytest.mark.parametrize(("source", "target"), [("", "here"), ("none", "here"), ("file", "file")])
def test_without_files_or_a_folder_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, target: str
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(SOURCE, str(tmp_path / source) if source else "")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / target))
    provide()
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
