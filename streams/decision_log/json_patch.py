"""Difference between two JSON values, small if little changed.

Format: None for no difference; {"+": {key: difference}, "-": [removed keys]} between two objects;
[value] for a replaced value.
"""

from __future__ import annotations

from typing import Any

ABSENT: Any = object()


def difference(old: Any, new: Any) -> Any:
    """The patch from `old` to `new`; None if they are equal. `old` may be ABSENT."""
    if old is ABSENT:
        return [new]
    if isinstance(old, dict) and isinstance(new, dict):
        changed = {}
        for key, value in new.items():
            found = difference(old.get(key, ABSENT), value)
            if found is not None:
                changed[key] = found
        gone = [key for key in old if key not in new]
        patch: dict[str, Any] = {}
        if changed:
            patch["+"] = changed
        if gone:
            patch["-"] = gone
        return patch or None
    return None if old == new else [new]


def patched(old: Any, patch: Any) -> Any:
    """`old` with `patch` applied; `old` itself is not changed. ValueError: the patch does not match
    `old`."""
    if patch is None:
        return old
    if isinstance(patch, list) and len(patch) == 1:
        return patch[0]
    if not isinstance(patch, dict) or not isinstance(old, dict):
        raise ValueError("a difference that does not fit what came before it")
    new = {key: value for key, value in old.items() if key not in patch.get("-", ())}
    for key, inner in patch.get("+", {}).items():
        new[key] = patched(new.get(key, ABSENT), inner)
    return new
