"""Write docs/reference/reason-codes.md: every reason code with its meaning, by family.

python deploy/reason_codes.py            # write the page
python deploy/reason_codes.py --check    # exit 1 if the page lists other codes
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "reason-codes.md"
sys.path.insert(0, str(ROOT))

from autoscaler.explain.reason_texts import FAMILIES  # noqa: E402  the path comes first
from deploy.written_files import write_or_check  # noqa: E402

_HEAD = """# Reason codes

Every decision record has `codes`: first the reason codes of the decision, then those of the reasons
behind it. The field `reason` says the same in a sentence for people. Programs should read the
codes, because a code keeps its meaning and a sentence may change. Later versions may add codes.

A decision that changes instances has two more fields. `cause` is the code of the demand, limit,
loss, price or saving without which the model would not change. `triggers` are the codes of the
events for which the full plan was made; they are empty for an urgent plan.

The codes are in the topic `decisions`, in `shoal explain --json` and `/v1/explain`, and in
`binding` and `broken_promises` of `shoal plan --json`.

This page is written by `python deploy/reason_codes.py` from `topics/reason_codes.py`.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([_HEAD, *_tables()])


def _tables() -> Iterator[str]:
    for title, family in FAMILIES.items():
        yield f"## {title}\n"
        yield "| code | meaning |"
        yield "|---|---|"
        yield from (f"| `{code}` | {code.meaning} |" for code in family)
        yield ""


def main(arguments: list[str]) -> int:
    """Exit code: 0, or 1 if `--check` finds an outdated file."""
    return write_or_check({PAGE: page()}, "deploy/reason_codes.py", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
