"""The wire name of an engine profile: its name and a hash of its content (arguments, container
image). The content itself is never on the wire: planner and executor each read it from their own
configuration. If the two contents differ, the wire names differ, and the executor refuses the
assignment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence


def profile_wire_name(name: str, image: str, args: Sequence[str]) -> str:
    """`name` with a hash of the profile: "fp8@3f2a91c04b7d"; `name` alone if the profile is
    empty."""
    if not image and not args:
        return name
    content = json.dumps([image, list(args)], separators=(",", ":"))
    return f"{name}@{hashlib.sha256(content.encode()).hexdigest()[:12]}"
