"""A package outside the repository adds one object of each kind by installation alone. It is the
example of docs/reference/extensions.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "extensions.md"
DECIDES = """
from autoscaler.domain.cluster import Cluster
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from tests.unit.simulation.simulation_builders import cluster, service

where = cluster(service("shop", min_instances=1), nodes=6)
decider = ControllerUnderTest()
simulated = Simulator(Scenario(where, (), 60.0, 3600.0), decider)
simulated.advance(120.0)
target = decider.state.models["shop"].target
print("target", target.req_per_s, target.why and (str(target.why.code), target.why.quoted))
asked = set()
for second in range(121, 3660):
    simulated.advance(float(second))
    for pending in decider.state.pending.values():
        asked |= {why.names[0] for why in pending.reasons if why.code == "extension"}
print("triggers", sorted(asked))
"""
NAMES = """
from autoscaler.simulation.policies.registry import policies_by_name
from executors.engines.engine_registry import parse_engine

(policy,) = policies_by_name(["our-hpa"])
print(policy.about, policy.default)
print(type(parse_engine("engines.mine", {"kind": "acme", "image": "acme:1"})).__name__)
"""


def blocks() -> tuple[str, str]:
    """The two files of the page's example."""
    found = dict(re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)```", PAGE.read_text(), re.S | re.M))
    return found["pyproject.toml"], found["acme_shoal.py"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed."""
    source, target = tmp_path_factory.mktemp("acme"), tmp_path_factory.mktemp("site")
    project, module = blocks()
    (source / "pyproject.toml").write_text(project)
    (source / "acme_shoal.py").write_text(module)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", target]
    command = [sys.executable, "-m", "pip", "install", *options, source]
    subprocess.run(command, check=True, timeout=120)
    return target


@pytest.fixture
def installed(package: Path, tmp_path: Path) -> Path:
    """A copy of the folder of the package."""
    return shutil.copytree(package, tmp_path / "site")


def run(script: str, site: Path) -> str:
    """The output of `script` in a process in which the packages of `site` are installed."""
    path = os.pathsep.join((str(site), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", script],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_package_adds_a_trigger_a_rule_an_engine_and_a_policy(installed: Path) -> None:
    said = run(NAMES, installed)
    assert "HPA as we run it 2.5\nAcmeEngine\n" in said
    said = run(DECIDES, installed)
    assert "target 5.0 ('extension', 'the campaign runs')\n" in said
    assert "triggers ['tariff']\n" in said


def test_a_broken_rule_is_named_and_left_out(installed: Path) -> None:
    module = installed / "acme_shoal.py"
    module.write_text(module.read_text().replace("return TargetProposal(", "return 1 / 0 * ("))
    said = run(DECIDES, installed)
    assert "RuntimeWarning: extension campaign of acme-shoal 1.0 failed" in said
    assert "'extension'" not in said
    assert "triggers ['tariff']\n" in said


def test_a_package_that_cannot_be_loaded_is_an_error_with_its_name(installed: Path) -> None:
    (installed / "acme_shoal.py").write_text("import nothing_of_the_kind\n")
    why = "of acme-shoal 1.0: \"No module named 'nothing_of_the_kind'\" is not allowed"
    backtest = "from streams.cli.main import main; main(['backtest', '--help'])"
    assert run(backtest, installed).startswith(f"shoal: shoal.policies: our-hpa {why}")
    controller = (
        "from streams.controller.controller_process import main; main(['--config', 'x.yaml'])"
    )
    assert f"controller: shoal.triggers: tariff {why}" in run(controller, installed)
