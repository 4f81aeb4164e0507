"""docs/explanation/one-tick.md shows the rooms (packages of the core) and their imports, and links
only existing files.
"""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "one-tick.md"

_spec = importlib.util.spec_from_file_location("rooms", ROOT / "deploy" / "rooms.py")
assert _spec is not None and _spec.loader is not None
rooms = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rooms)


def test_every_link_leads_to_a_file() -> None:
    links = re.findall(r"\]\((\.\./[^)#]+)\)", PAGE.read_text(encoding="utf-8"))
    assert len(links) > 30
    assert [link for link in links if not (PAGE.parent / link).is_file()] == []


def test_every_room_of_the_core_is_explained() -> None:
    explained = set(re.findall(r"^\| `(\w+)/` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert explained == set(rooms.imports(ROOT / "autoscaler")) - {"decide", "extension_api"}


def test_the_diagram_leaves_out_an_import_that_a_longer_path_implies() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert rooms.reduced(graph) == [("a", "b"), ("b", "c")]
