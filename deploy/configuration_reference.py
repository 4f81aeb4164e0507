"""Write the tables of the configuration reference and the JSON Schema from the keys of shoal.yaml.

python deploy/configuration_reference.py            # write both
python deploy/configuration_reference.py --check    # exit 1 if one of them is out of date

Each table of the page stands between `<!-- keys: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from deploy.written_files import write_or_check  # noqa: E402  the path comes first
from streams.files import components_section as components  # noqa: E402
from streams.files import engines_section as engines  # noqa: E402
from streams.files import models_section as models  # noqa: E402
from streams.files import pools_section as pools  # noqa: E402
from streams.files import quality_section as quality  # noqa: E402
from streams.files.config_schema import json_schema  # noqa: E402
from streams.files.defaults_section import DEFAULTS  # noqa: E402
from streams.files.keys import Either, Group, Named  # noqa: E402
from streams.files.policy_section import POLICY  # noqa: E402
from streams.files.shoal_yaml import SHOAL_YAML  # noqa: E402
from streams.tools.up import scenario_file  # noqa: E402

SCHEMA = ROOT / "docs" / "reference" / "shoal.schema.json"
PAGE = ROOT / "docs" / "reference" / "configuration.md"
GROUPS = {
    "file": SHOAL_YAML,
    "defaults": DEFAULTS,
    "policy": POLICY,
    "pool": pools.POOL,
    "model": models.MODEL,
    "engine": engines.ENGINE,
    "components": components.COMPONENTS_MODEL,
    "quality": quality.QUALITY_ROUTE,
    "scenario": scenario_file.SCENARIO,
    "event": scenario_file.EVENT,
}
_TABLE = re.compile(r"(<!-- keys: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LINKED = ("defaults", "policy", "regions", "models", "engines", "events")
"""Groups of the file with their own table."""


def table(name: str) -> str:
    """The table of the group `name` as Markdown."""
    group = GROUPS[name]
    rows = list(_rows(group, ""))
    if name in ("model", "components"):
        inherited = {key.name for key in DEFAULTS.keys}
        rows = [row for row in rows if row[0] not in inherited]
        named = ", ".join(f"`{key}`" for key in sorted(inherited))
        rows.append((named, "as in `defaults`", "that of `defaults`", "The model's own value."))
    if name == "components":
        model = set(_rows(GROUPS["model"], ""))
        named = ", ".join(f"`{row[0]}`" for row in rows if row in model)
        rows = [row for row in rows if row not in model]
        other = "[other models](#modelsname)"
        rows.append((named, "as in `models.NAME`", "the same", f"The same as for {other}."))
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, form, default, about in rows:
        shown = key if key.startswith("`") else f"`{key}`"
        lines.append(f"| {shown} | {form} | {default} | {about} |")
    return "\n".join(lines) + "\n"


def _rows(group: Group, path: str) -> Iterator[tuple[str, str, str, str]]:
    """Key, format of the value, default and meaning of each key in `group` and below."""
    for key in sorted(group.keys, key=lambda one: one.advanced):
        default = f"`{key.default}`" if key.default else key.otherwise or "required"
        about = f"{key.about} (advanced)" if key.advanced else key.about
        yield f"{path}{key.name}", key.parser.form, default, about
    for name, value in group.groups.items():
        default = "required" if name in group.required else "none"
        if not path and name in _LINKED:
            yield name, "mapping", default, value.about
            continue
        if isinstance(value, Group):
            yield from _rows(value, f"{path}{name}.")
            continue
        form = "mapping by name"
        yield f"{path}{name}", form, default, value.about
        inner = value.of if isinstance(value, Named) else value
        if isinstance(inner, Either):
            inner = inner.otherwise
        if isinstance(inner, Group):
            yield from _rows(inner, f"{path}{name}.NAME.")


def page(text: str) -> str:
    """`text` of a page with its correct tables."""
    return _TABLE.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", text)


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 if `--check` finds an outdated file."""
    wanted = {
        PAGE: page(PAGE.read_text("utf-8")),
        SCHEMA: json.dumps(json_schema(), indent=1) + "\n",
    }
    return write_or_check(wanted, "deploy/configuration_reference.py", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
