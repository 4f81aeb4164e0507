"""Where Shoal meets what users already have: Protocols, each with a first implementation."""
