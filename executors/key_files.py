"""Where a process of the serving plane finds its keys: the environment, or files that it names."""

from __future__ import annotations

import os
from pathlib import Path

from topics.checks import InvalidRecord
from topics.signing import CLUSTER_KEY, ENGINE_KEY, NODE_KEY, Keys, keys_from


def read_keys() -> Keys:
    """The keys of this process; InvalidRecord when they cannot be used."""
    try:
        return keys_from(os.environ, lambda path: Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        variables = f"{CLUSTER_KEY}_FILE, {NODE_KEY}_FILE or {ENGINE_KEY}_FILE"
        raise InvalidRecord(variables, str(error), "a readable text file") from None
