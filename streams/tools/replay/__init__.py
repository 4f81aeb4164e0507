"""Replays recorded traces as OpenAI requests, at their recorded times whether or not answers have
come.
"""
