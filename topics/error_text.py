"""Text of an exception for a message.

Some exceptions, such as TimeoutError, have no text. `error or "..."` does not help, because an
exception is true even if its text is empty.
"""

from __future__ import annotations


def error_text(error: BaseException, otherwise: str = "") -> str:
    """The text of `error`; if it has none, `otherwise` or the name of its class."""
    return str(error).strip() or otherwise or type(error).__name__
