"""Ports to systems that users already have: Protocols, each with an implementation."""
