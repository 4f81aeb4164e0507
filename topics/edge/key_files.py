"""Reads a process's keys from environment variables, or from the files that the variables name."""

from __future__ import annotations

import os
from pathlib import Path

from topics.checks import InvalidValue
from topics.keys import (
    CLUSTER_KEY,
    ENGINE_KEY,
    GATEWAY_KEY,
    NODE_KEY,
    OPERATOR_KEY,
    Keys,
    keys_from_environment,
)


def read_keys() -> Keys:
    """The keys of this process. Raises InvalidValue if they are invalid."""
    try:
        return keys_from_environment(os.environ, lambda path: Path(path).read_text())
    except (OSError, UnicodeDecodeError) as error:
        names = (CLUSTER_KEY, NODE_KEY, GATEWAY_KEY, OPERATOR_KEY, ENGINE_KEY)
        variables = " or ".join(f"{name}_FILE" for name in names)
        raise InvalidValue(variables, str(error), "a readable text file") from None
