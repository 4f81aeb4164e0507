"""Rules for names of models, engines, regions and pools."""

from __future__ import annotations

import re

from streams.files.yaml_tree import Section

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")


def check_name(section: Section, name: str) -> None:
    """Refuse the name of `section` unless it is valid in a topic key and in a path."""
    if not _NAME.match(name):
        raise section.error(
            name, "a name is 1 to 63 letters, digits or . _ -, and begins with a letter or digit"
        )
