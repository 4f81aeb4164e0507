"""Draw the rooms of `autoscaler/` and their imports as a Mermaid diagram in
docs/explanation/one-tick.md.

    python deploy/rooms.py            # write the diagram between its markers
    python deploy/rooms.py --check    # exit 1 if the page does not show the code as it is

Standard library only. An arrow that follows from two others is left out (transitive reduction).
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from deploy.written_files import write_or_check  # noqa: E402  the path comes first

PAGE = ROOT / "docs" / "explanation" / "one-tick.md"
BEGIN, END = "<!-- rooms: begin -->", "<!-- rooms: end -->"
PACKAGE = "autoscaler"


def imports(package: Path) -> dict[str, set[str]]:
    """The rooms that each room imports. Rooms are folders and top modules of `package`."""
    graph: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        room = parts[0]
        if room == "__init__":
            continue
        targets = graph.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            names = node.module.split(".")
            if names[0] != package.name:
                continue
            found = names[1:2] or [alias.name for alias in node.names]
            targets.update(name for name in found if name != room)
    return graph


def reduced(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows of an acyclic `graph` that no longer path implies, ordered by name."""

    def reaches(start: str, goal: str, seen: set[str]) -> bool:
        if start == goal:
            return True
        seen.add(start)
        return any(reaches(n, goal, seen) for n in graph.get(start, ()) if n not in seen)

    return [
        (room, target)
        for room in sorted(graph)
        for target in sorted(graph[room])
        if not any(reaches(other, target, {room}) for other in graph[room] - {target})
    ]


def diagram() -> str:
    """The Mermaid text. Arrows point from the room that imports to the room it imports."""
    lines = [f"    {room} --> {target}" for room, target in reduced(imports(ROOT / PACKAGE))]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])


def page_with_diagram(text: str) -> str:
    """`text` of the page with the present diagram between its markers. ValueError: it has no
    markers.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: the markers {BEGIN} and {END} are missing")
    return f"{head}{BEGIN}\n{diagram()}\n{END}{tail}"


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 if `--check` finds an outdated file."""
    page = page_with_diagram(PAGE.read_text(encoding="utf-8"))
    return write_or_check({PAGE: page}, "deploy/rooms.py", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
