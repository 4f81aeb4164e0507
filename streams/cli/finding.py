"""The result of one check of `shoal doctor`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ok: no action is needed.

    what: the checked item. state: its state. remedy: how to mend it, "" if nothing is to be done.
    section: the heading under which it is shown.
    """

    ok: bool
    what: str
    state: str
    remedy: str = ""
    section: str = ""
