"""Hooks: functions of a mode that the core calls but does not import.

A mode (`autoscaler/modes/NAME`) registers its functions when it is imported. A hook imports its
mode at the first call, so a fleet that uses no mode runs none of its code.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ModeHook(Generic[P, R]):
    """A function that the mode of name `mode` provides."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._provided: Callable[P, R] | None = None

    def provide(self, function: Callable[P, R]) -> None:
        """Let calls run `function`."""
        self._provided = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._provided is None:
            import_module(f"autoscaler.modes.{self._mode}")
        if self._provided is None:
            raise RuntimeError(f"mode {self._mode}: a hook is not provided")
        return self._provided(*args, **kwargs)
