"""The result of one check of `shoal doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ok: no action is needed.

    what: the checked item. said: its state. mend: the remedy.
    """

    ok: bool
    what: str
    said: str
    mend: str = ""
