"""Alerts in a real Prometheus that scrapes runs of `shoal up`."""
