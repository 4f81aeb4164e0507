"""The environment of a real vLLM: built once, named after its lock file, and used only if it is
complete.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from executors.engines.vllm import cpu_environment, tiny_model
from executors.engines.vllm.cpu_environment import CannotBuild

LOCK = Path(cpu_environment.__file__).with_name("requirements.lock")


class Builder:
    """Replaces venv and the installer: creates their files, or fails at the second step."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.fails = False
        self.nixl = "agent_config.pthrDelay = 0"

    def __call__(self, argv: list[str]) -> None:
        self.runs.append(argv)
        if "venv" in argv:
            (Path(argv[-1]) / "lib" / "python3" / "site-packages").mkdir(parents=True)
        elif self.fails:
            raise CannotBuild("the installer ended with exit code 1")
        else:
            module = Path(argv[4]).parents[1] / "lib/python3/site-packages/nixl_cu13/_api.py"
            module.parent.mkdir()
            module.write_text(f"x = 1\n{self.nixl}\ny = 2\n")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Builder:
    made = Builder()
    monkeypatch.setattr(cpu_environment, "_run", made)
    monkeypatch.setattr(cpu_environment, "_NEEDED_GB", 0.0)
    monkeypatch.setattr(cpu_environment.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return made


def test_the_environment_is_built_once(builder: Builder, tmp_path: Path) -> None:
    """Every package has a hash. An extra package tells vLLM its version."""
    target = cpu_environment.ensure()
    assert target.parent == tmp_path / "shoal"
    assert "--require-hashes" in builder.runs[1]
    (metadata,) = target.glob("lib/python*/site-packages/vllm-*.dist-info/METADATA")
    assert "Name: vllm\n" in metadata.read_text()
    (nixl,) = target.glob("lib/python*/site-packages/nixl_cu13/_api.py")
    assert nixl.read_text() == "x = 1\nagent_config.pthrDelay = 2000\ny = 2\n"
    assert cpu_environment.ensure() == target
    assert len(builder.runs) == 2


def test_a_nixl_without_the_expected_line_is_refused(builder: Builder) -> None:
    builder.nixl = "agent_config.delay = 0"
    with pytest.raises(CannotBuild, match="pthrDelay = 0` once"):
        cpu_environment.ensure()


def test_an_interrupted_build_is_never_used(builder: Builder) -> None:
    """The next start removes it and builds again."""
    builder.fails = True
    with pytest.raises(CannotBuild):
        cpu_environment.ensure()
    left = cpu_environment.environment_folder()
    (left / "debris").touch()
    builder.fails = False
    assert cpu_environment.ensure() == left
    assert not (left / "debris").exists()


def test_an_unsupported_machine_and_a_full_disk_are_reported(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_environment, "_NEEDED_GB", 1e9)
    with pytest.raises(CannotBuild, match="GB free"):
        cpu_environment.ensure()
    monkeypatch.setattr(cpu_environment.platform, "machine", lambda: "riscv64")
    with pytest.raises(CannotBuild, match="x86-64"):
        cpu_environment.ensure()
    assert builder.runs == []


def test_the_lock_pins_every_package_with_hashes_and_names_no_registry() -> None:
    lines = LOCK.read_text().splitlines()
    packages = [line for line in lines if line and line[0] not in " #"]
    assert len(packages) > 100
    assert all(re.match(r"[A-Za-z0-9._-]+={2,3}\S+ ", line) for line in packages)
    assert sum("--hash=sha256:" in line for line in lines) >= len(packages)
    assert "://" not in LOCK.read_text()


def test_the_tiny_model_has_a_token_for_every_byte(tmp_path: Path) -> None:
    vocabulary = json.loads((tiny_model.write(tmp_path) / "tokenizer.json").read_text())["model"][
        "vocab"
    ]
    assert len(vocabulary) == len(set(vocabulary.values())) == 256 + 3
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["vocab_size"] >= len(vocabulary)
