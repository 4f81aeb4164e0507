"""docs/reference/configuration.md is correct: its example can be planned, and its tables list every
key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from autoscaler.domain.cluster import Policy
from deploy.configuration_reference import GROUPS
from deploy.configuration_reference import main as write_reference
from streams.cli.main import main
from streams.files.defaults_section import DEFAULTS, read_defaults
from streams.files.keys import Group, Key
from streams.files.policy_section import POLICY, read_policy
from streams.files.served_names import served_as
from streams.files.shoal_yaml import load_config
from streams.files.units import text
from streams.files.user_errors import UserError
from streams.files.yaml_tree import read_text

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs" / "reference" / "configuration.md").read_text()
EXAMPLE = ROOT / "deploy" / "examples" / "four-models.yaml"


def test_the_example_in_the_page_equals_the_file_and_has_four_models_on_40_gpus() -> None:
    text = DOCS.split("```yaml\n")[1].split("```")[0]
    assert text == EXAMPLE.read_text()
    cluster = load_config(EXAMPLE).cluster
    assert len(cluster.services) == 4
    assert len({pool.region for pool in cluster.pools}) == 2
    nodes = {(p.region, p.name): (p.max_of_both or p.max_nodes) * p.per_node for p in cluster.pools}
    assert sum(nodes.values()) == 40


def test_the_example_is_planned_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", str(EXAMPLE)]) == 0
    out = capsys.readouterr().out
    for words in ("chat", "code", "mini", "batch", "Cost", "limited by", "rejected"):
        assert words in out


PLACES = {
    "file": (),
    "defaults": ("defaults",),
    "policy": ("policy",),
    "pool": ("regions", "eu-west", "l40s"),
    "model": ("models", "chat"),
    "engine": ("engines", "fp8"),
}
FREE = (text, served_as)
KEYS = [(group, key) for group in PLACES for key in GROUPS[group].keys if key.parser not in FREE]


@pytest.mark.parametrize(("group", "key"), KEYS, ids=lambda one: getattr(one, "name", one))
def test_an_invalid_value_of_each_key_is_refused_with_its_line(
    group: str, key: Key[Any], tmp_path: Path
) -> None:
    value = yaml.safe_load(EXAMPLE.read_text())
    place = value
    for name in PLACES[group]:
        place = place[name]
    if group == "pool" and key.name == "nodes":
        place.clear()
        place.update({"gpu": "L4", "owned": True})
    place[key.name] = "{no value of any key}"
    path = tmp_path / "shoal.yaml"
    path.write_text(yaml.safe_dump(value))
    with pytest.raises(UserError) as caught:
        load_config(path)
    message = str(caught.value)
    where = ".".join((*PLACES[group], key.name))
    assert re.match(rf"{re.escape(str(path))}:\d+: {re.escape(where)}: ", message)
    assert "allowed" in message and "\n" not in message


@pytest.mark.parametrize("group", [DEFAULTS, POLICY])
def test_written_defaults_are_those_of_the_reader(group: Group) -> None:
    """An empty section and a section with every written default mean the same."""
    written = "\n".join(f"  {key.name}: {key.default}" for key in group.keys if key.default)
    name = "defaults" if group is DEFAULTS else "policy"
    empty = read_text(b"{}", "file", "keys").section(name)
    full = read_text(f"{name}:\n{written}".encode(), "file", "keys").section(name)
    if group is DEFAULTS:
        assert read_defaults(full, True) == read_defaults(empty, True)
    else:
        assert read_policy(full) == read_policy(empty) == Policy()


def test_tables_and_schema_are_those_of_the_reader(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_reference(["--check"]) == 0, capsys.readouterr().out
