"""Forecasts of the rate at the time when an instance started now would be ready."""
