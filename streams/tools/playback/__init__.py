"""Playback: a recorded or simulated span as a page of the console with a time slider."""
