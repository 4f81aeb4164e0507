"""Words that depend on a number."""

from __future__ import annotations


def several(count: int, what: str) -> str:
    """ "1 model", "3 models"."""
    return f"{count} {what}{'' if count == 1 else 's'}"
