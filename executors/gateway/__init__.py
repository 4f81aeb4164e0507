"""The gateway: an OpenAI-compatible front that sends requests where the routes say."""
