"""Measurements of engines: requests at a steady load, and their latencies."""
