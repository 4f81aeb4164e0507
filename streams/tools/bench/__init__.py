"""Measuring engines: requests at a steady load and what they show."""
