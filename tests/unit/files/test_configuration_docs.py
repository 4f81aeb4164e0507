"""docs/configuration.md is correct: its example can be planned, and its errors occur as listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from streams.cli.main import main
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.files.yaml_tree import Section

ROOT = Path(__file__).parents[3]
DOCS = (ROOT / "docs" / "configuration.md").read_text()
EXAMPLE = ROOT / "deploy" / "examples" / "four-models.yaml"
ROW = re.compile(r"^\| (`[^|]+`) \|.*\| `([^`]+)` \(([^|]+)\) \|$")
PLACES = {
    "The file": (),
    "defaults": ("defaults",),
    "policy": ("policy",),
    "regions.REGION.POOL": ("regions", "eu-west", "l40s"),
    "models.NAME": ("models", "chat"),
    "engines.NAME": ("engines", "fp8"),
}


def refusals() -> list[tuple[str, str, str]]:
    """(section, key: value, part of the error message) of each row of the tables."""
    found, section = [], ""
    for line in DOCS.splitlines():
        if line.startswith("## "):
            section = line[3:]
        match = ROW.match(line)
        if match:
            found.append((section, match[2], match[3]))
    return found


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
    for words in ("chat", "code", "mini", "batch", "total", "bound by", "rejected"):
        assert words in out


@pytest.mark.parametrize(("section", "key", "words"), refusals())
def test_the_errors_of_the_tables_occur_verbatim(
    section: str, key: str, words: str, tmp_path: Path
) -> None:
    value = yaml.safe_load(EXAMPLE.read_text())
    place = value
    for name in PLACES[section]:
        place = place[name]
    place.update(yaml.safe_load(key))
    if key.startswith("nodes"):
        place.clear()
        place.update({"gpu": "L4", "owned": True, **yaml.safe_load(key)})
    path = tmp_path / "shoal.yaml"
    path.write_text(yaml.safe_dump(value))
    with pytest.raises(UserError) as caught:
        load_config(path)
    said = str(caught.value)
    assert words in said
    assert said.startswith(str(path))
    assert "\n" not in said


def test_every_key_that_the_file_may_have_is_in_the_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader records the keys that it requests while it reads the example."""
    asked: set[str] = set()
    take, section = Section.take, Section.section

    def noted_take(self: Section, key: str, *more: object) -> object:
        asked.add(key)
        return take(self, key, *more)  # type: ignore[arg-type]

    def noted_section(self: Section, key: str, *more: object, **named: object) -> object:
        asked.add(key)
        return section(self, key, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Section, "take", noted_take)
    monkeypatch.setattr(Section, "section", noted_section)
    value = load_config(EXAMPLE)
    names = {pool.region for pool in value.cluster.pools} | {p.name for p in value.cluster.pools}
    names |= {service.model for service in value.cluster.services} | {"fp8"}
    documented = set(re.findall(r"`([a-z_.]+)`", DOCS))
    documented |= {part for key in documented for part in key.split(".")}
    assert asked - names <= documented
