"""The media of a request: what its content holds, and what it asks for beside text.

By these, a request to a model of components is told its kind (`topics.routing.RequestKind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PARTS = {"image_url": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}


def media_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Media of a checked chat request, each once: image, video and audio in its messages, and
    audio-out where `modalities` asks for audio."""
    found = set(_contents(body.get("messages") or ()))
    if "audio" in (body.get("modalities") or ()):
        found.add("audio-out")
    return tuple(sorted(found))


def _contents(messages: Any) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield from (medium for name, medium in _PARTS.items() if part.get(name) is not None)
