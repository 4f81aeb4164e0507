"""The gateway: an OpenAI-compatible HTTP server that sends requests to engines as the routes
say."""
