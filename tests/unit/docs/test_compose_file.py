"""deploy/compose is a valid Compose project whose files exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from streams.cli.main import main

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "compose"
SCHEMA = ROOT / "tests" / "data" / "compose" / "compose-spec.json"


@pytest.fixture
def project() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    return found


def test_the_file_fits_the_schema_of_compose(project: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(json.loads(SCHEMA.read_text())).validate(project)


def test_mounted_files_and_secrets_exist(project: dict[str, Any]) -> None:
    mounts = [v for s in project["services"].values() for v in s.get("volumes", ())]
    files = [FOLDER / mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    files += [FOLDER / secret["file"] for secret in project["secrets"].values()]
    assert files and all(file.exists() for file in files)


def test_every_port_is_on_loopback(project: dict[str, Any]) -> None:
    ports = [port for s in project["services"].values() for port in s.get("ports", ())]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", ["controller", "gateway", "executor"])
def test_commands_exist_and_take_their_options(
    name: str, project: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *options = project["services"][name]["command"]
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert all(option.split("=")[0] in text for option in options)


def test_the_fleet_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", str(FOLDER / "shoal.yaml")]) == 0
    assert "2 models" in capsys.readouterr().out
