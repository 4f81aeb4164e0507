"""The longest wait of a test for an event."""

HANG_S = 180.0
"""Real seconds after which an awaited event counts as missing. A test waits for the event and no
longer, so a generous limit costs nothing; a loaded machine needs it."""
