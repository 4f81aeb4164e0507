"""The media of a request: what its content holds, what it asks for beside text, and from where an
engine would fetch it.

By its media, a request to a model of components is told its kind (`topics.routing.RequestKind`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from executors.gateway.allowed_fields import BadRequest

_PARTS = {"image_url": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
_URLS = ("image_url", "video_url", "audio_url")
# Stricter than any parser of URLs, so that an engine cannot read another host out of it.
_URL = re.compile(r"https?://([A-Za-z0-9.-]{1,253})(?::[0-9]{1,5})?(?:[/?#][!-\[\]-~]*)?\Z")


def media_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Media of a checked chat request, each once: image, video and audio in its messages, and
    audio-out where `modalities` asks for audio."""
    found = set(_contents(body.get("messages") or ()))
    if "audio" in (body.get("modalities") or ()):
        found.add("audio-out")
    return tuple(sorted(found))


def check_urls(body: Mapping[str, Any], domains: Collection[str]) -> None:
    """BadRequest where an engine would have to fetch something from a host outside `domains`: it
    may reach hosts that the client does not, such as a cloud's metadata service."""
    for number, message in enumerate(body.get("messages") or ()):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            for name in _URLS if isinstance(part, dict) else ():
                url = part.get(name)
                if isinstance(url, dict):
                    url = url.get("url")
                if url and not url.startswith("data:"):
                    _check_url(f"messages[{number}].content[{place}].{name}", url, domains)


def _check_url(field: str, url: str, domains: Collection[str]) -> None:
    if not domains:
        raise BadRequest(f"{field}: URLs are not fetched here; send the data as a data: URL", field)
    found = _URL.match(url)
    if found is None or found[1].lower() not in domains:
        allowed = ", ".join(sorted(domains)[:10])
        raise BadRequest(f"{field}: only data: URLs and those of {allowed} are accepted", field)


def _contents(messages: Any) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield from (medium for name, medium in _PARTS.items() if part.get(name) is not None)
