"""Table of docs/reference/checkpoints.md: the architectures that Shoal reads from public
configurations.

`python -m loadtests.checkpoint_table` prints it, `--write` puts it into the page.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.architecture import from_config

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "tests" / "data" / "checkpoints" / "facts.json.gz"
PAGE = ROOT / "docs" / "reference" / "checkpoints.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
_HEAD = (
    "| checkpoint | parameters, 1e9 | stated | weights, GB | index, GB |\n"
    "| --- | --: | --: | --: | --: |\n"
)


def facts() -> Mapping[str, Mapping[str, Any]]:
    """The facts in tests/data/checkpoints, by the name of the checkpoint."""
    rows: Mapping[str, Mapping[str, Any]] = json.loads(gzip.decompress(FACTS.read_bytes()))[
        "checkpoints"
    ]
    return rows


def table() -> str:
    """Return Markdown: the checkpoints for which the publisher states a figure, the names of all
    others, and the refused ones with the reason.
    """
    rows, others, refused = [], [], []
    for name, row in facts().items():
        try:
            spec = from_config(name, row["config"])
        except InvalidValue as error:
            why = str(error).removeprefix("config: ").partition(" is not allowed")[0]
            refused.append(f"- {name}: `{why}`\n")
            continue
        if "published" in row or "index_bytes" in row:
            rows.append(_row(name, row, spec))
        else:
            others.append(name)
    read = f"Also read, without a stated figure: {', '.join(others)}.\n"
    return f"{_HEAD}{''.join(rows)}\n{read}\nRefused by name:\n\n{''.join(refused)}"


def _row(name: str, row: Mapping[str, Any], spec: ModelSpec) -> str:
    cells = [
        f"{name} ({spec.weight_dtype})",
        f"{spec.params / 1e9:.4g} ({spec.active_params / 1e9:.3g} active)"
        if spec.is_moe
        else f"{spec.params / 1e9:.4g}",
        " / ".join(_stated(row)) or "-",
        f"{spec.weight_bytes / 1e9:.4g}",
        f"{row['index_bytes'] / 1e9:.4g}" if "index_bytes" in row else "-",
    ]
    return f"| {' | '.join(cells)} |\n"


def _stated(row: Mapping[str, Any]) -> Iterator[str]:
    for key in ("published", "published_active"):
        if key in row:
            yield f"{row[key]:g}"


def with_table(page: str) -> str:
    """Return the text of the page with a new table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main(argv: list[str] | None = None) -> int:
    """Print the table, or write the page."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments == ["--write"]:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    sys.stdout.write(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
