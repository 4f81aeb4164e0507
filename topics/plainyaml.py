"""Bounded YAML for untrusted input: no aliases, and limits on size, length and depth.

An alias can expand a few hundred bytes into billions of nodes. Configurations hardly ever use
aliases, so all aliases are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import yaml

T = TypeVar("T")
MOST_CHARS = 4_000_000
MOST_NODES = 200_000
MOST_DEPTH = 32


class PlainLoader(yaml.SafeLoader):
    """YAML loader that raises yaml.MarkedYAMLError, with the line, for input that exceeds a
    limit."""

    def __init__(self, text: str) -> None:
        if len(text) > MOST_CHARS:
            raise _refused(f"more than {MOST_CHARS:,} characters", None)
        super().__init__(text)
        self._nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node as SafeLoader does, unless it exceeds a limit."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        # PyYAML sets `anchor` on aliases (*) and on anchored values (&).
        if getattr(event, "anchor", None) is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            shown = f"{sign}{event.anchor[:40]}"
            raise _refused(
                f"{shown}: aliases and anchors are not supported; write the values out", mark
            )
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise _refused(f"more than {MOST_NODES:,} values", mark)
        if self._depth == MOST_DEPTH:
            raise _refused(f"values are nested more than {MOST_DEPTH} deep", mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def load(text: str) -> Any:
    """The value of the YAML `text`. Raises yaml.YAMLError if `text` is invalid or exceeds a
    limit."""
    return _read(lambda: yaml.load(text, PlainLoader))  # noqa: S506  a SafeLoader with bounds


def load_all(text: str) -> list[Any]:
    """The values of all documents of the YAML `text`. Raises yaml.YAMLError as `load` does."""
    return _read(lambda: list(yaml.load_all(text, PlainLoader)))


def _read(parse: Callable[[], T]) -> T:
    try:
        return parse()
    except (
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:  # for example from `!!bool maybe`
        raise yaml.YAMLError(f"a value cannot be read ({error})") from error
    except RecursionError:
        raise yaml.YAMLError("values are nested too deep") from None


def _refused(problem: str, mark: yaml.Mark | None) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
