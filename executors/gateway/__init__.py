"""The gateway: an OpenAI-compatible HTTP server that sends requests to engines according to the
routes."""
