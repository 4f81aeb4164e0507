"""Default folder of decision logs on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def default_folder() -> Path:
    """`$XDG_STATE_HOME/shoal/decisions`; under ~/.local/state if that variable is not set."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "shoal" / "decisions"
