"""How an engine profile is called on the wire: its name and a hash, never its content.

The operator owns what a profile says (arguments, container image); planner and executor each read
it in their own configuration. Where the two differ, the names differ, and the executor refuses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence


def wire_name(name: str, image: str, args: Sequence[str]) -> str:
    """`name`, with a hash of the profile where it says anything: "fp8@3f2a91c04b7d"."""
    if not image and not args:
        return name
    content = json.dumps([image, list(args)], separators=(",", ":"))
    return f"{name}@{hashlib.sha256(content.encode()).hexdigest()[:12]}"
