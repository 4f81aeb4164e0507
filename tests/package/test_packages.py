"""Content of wheel, sdist and SBOM."""

from __future__ import annotations

import email
import hashlib
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from deploy import release
from tests.package.conftest import REPOSITORY, Built


def _tracked() -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", *release.PACKAGES], cwd=release.ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_the_wheel_contains_every_file_of_the_packages(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = set(wheel.namelist())
    assert not _tracked() - inside
    parts = {path.split("/")[0] for path in inside}
    assert parts == {*release.PACKAGES, "shoal-0.1.0.dist-info"}


def test_the_sdist_contains_every_file_of_the_packages(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        inside = {path.partition("/")[2] for path in sdist.getnames()}
    assert not _tracked() - inside
    assert {"LICENSE", "NOTICE", "README.md", release.SBOM} <= inside


def test_the_wheel_contains_its_licences_and_a_valid_record(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        inside = set(wheel.namelist())
        record = wheel.read("shoal-0.1.0.dist-info/RECORD").decode().splitlines()
    for name in ("LICENSE", "NOTICE", "streams/console/page/vendor/LICENSE-uPlot"):
        assert f"shoal-0.1.0.dist-info/licenses/{name}" in inside
    assert {line.split(",")[0] for line in record} == inside


def test_the_description_has_urls_and_absolute_links(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        metadata = email.message_from_bytes(wheel.read("shoal-0.1.0.dist-info/METADATA"))
    assert f"Homepage, {REPOSITORY}" in metadata.get_all("Project-URL", [])
    assert metadata["License-Expression"] == "Apache-2.0"
    text = metadata.get_payload()
    assert f"]({REPOSITORY}/raw/v0.1.0/docs/pictures/console.png)" in text
    assert f"]({REPOSITORY}/blob/v0.1.0/docs/explanation/one-tick.md)" in text
    assert "](docs/" not in text


def test_only_relative_links_change() -> None:
    text = "[a](a.md#b) ![p](p.png) [w](https://example.org/x) [h](#here)"
    changed = release.absolute_links(text, "https://r/s", "v1")
    assert changed == (
        "[a](https://r/s/blob/v1/a.md#b) ![p](https://r/s/raw/v1/p.png) "
        "[w](https://example.org/x) [h](#here)"
    )


def test_the_bill_of_materials_lists_every_locked_package(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        bill = json.loads(wheel.read(f"shoal-0.1.0.dist-info/sboms/{release.SBOM}"))
    lock = (release.ROOT / "requirements.lock").read_text()
    pins = {line.split()[0] for line in lock.splitlines() if "==" in line and line[0].isalnum()}
    assert {part["bom-ref"] for part in bill["components"]} == pins
    assert all(part["properties"] for part in bill["components"])


def test_checksums_match_the_files(built: Built) -> None:
    lines = (built.folder / "SHA256SUMS").read_text().splitlines()
    for digest, name in (line.split("  ") for line in lines):
        assert hashlib.sha256((built.folder / name).read_bytes()).hexdigest() == digest
    assert len(lines) == 3


@pytest.mark.parametrize("address", ["http://example.org/a", "example.org/a", "https://a b/c"])
def test_a_repository_that_is_no_https_address_is_refused(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        release.main(["--out", str(tmp_path / "out"), "--repository", address])
    assert "allowed: https://HOST/PATH" in capsys.readouterr().err
