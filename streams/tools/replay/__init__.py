"""Replays recorded traces as OpenAI requests, open loop."""
