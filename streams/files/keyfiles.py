"""Find and write key files.

Only the owner may read a key file (0600) and its folder (0700).
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

from topics.checks import InvalidValue
from topics.edge.key_files import read_keys
from topics.keys import OPERATOR_KEY, Keys, Principal, check_key


def operator_keys(broker: str, prefix: str) -> Keys:
    """Signing keys for a command: the keys in the environment, or else those of this user's own
    run.

    `shoal up` writes such a key for its own broker. InvalidValue as in `read_keys`.
    """
    keys = read_keys()
    if keys.principal_keys(Principal.OPERATOR):
        return keys
    try:
        text = run_key_file(broker, prefix).read_text()
    except (OSError, UnicodeDecodeError):
        return keys
    try:
        return replace(keys, operator=check_key(OPERATOR_KEY, text))
    except InvalidValue:
        return keys


def run_key_file(broker: str, prefix: str) -> Path:
    """File in which `shoal up` stores the operator key of its run, for other commands of this
    user."""
    return _state_file(f"{broker}-{prefix}")


def console_token_file(url: str) -> Path:
    """File in which `shoal up` stores the token for commands in the console at `url`."""
    return _state_file(f"console-{url.rstrip('/').partition('://')[2]}")


def _state_file(name: str) -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "shoal" / "keys" / name.replace("/", "_")


def write_key(path: Path, text: str) -> None:
    """Replace the content of `path` with `text` atomically, readable by the owner alone. Raises
    OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text.rstrip("\n") + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
