"""Ports to systems that users already have: Protocols, each with a first implementation."""
