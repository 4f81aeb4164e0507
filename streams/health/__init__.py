"""The controller's own health and what it takes in over HTTP: metrics, status, alerts."""
