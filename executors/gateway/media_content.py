"""Find the media in a request, and check the URLs that engines would fetch.

Routing to a model of components uses the media as part of the request's kind
(`topics.routing.RequestKind`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from executors.gateway.allowed_fields import BadRequest

_MEDIUM_OF_PART = {
    "image_url": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
}
_URL_PARTS = ("image_url", "video_url", "audio_url")
# Stricter than any URL parser, so that engine and gateway read the same host from a URL.
_URL = re.compile(r"https?://([A-Za-z0-9.-]{1,253})(?::[0-9]{1,5})?(?:[/?#][!-\[\]-~]*)?\Z")


def media_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The media of a checked chat request, sorted: image, video and audio in its messages, and
    audio-out if `modalities` asks for audio."""
    media = set(_media_parts(body.get("messages") or ()))
    if "audio" in (body.get("modalities") or ()):
        media.add("audio-out")
    return tuple(sorted(media))


def check_urls(body: Mapping[str, Any], domains: Collection[str]) -> None:
    """Raise BadRequest if an engine would fetch from a host outside `domains`. Engines may reach
    hosts that the client does not, such as a cloud's metadata service."""
    for number, message in enumerate(body.get("messages") or ()):
        content = message.get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            for name in _URL_PARTS if isinstance(part, dict) else ():
                url = part.get(name)
                if isinstance(url, dict):
                    url = url.get("url")
                if url and not url.startswith("data:"):
                    _check_url(f"messages[{number}].content[{place}].{name}", url, domains)


def _check_url(field: str, url: str, domains: Collection[str]) -> None:
    if not domains:
        raise BadRequest(f"{field}: only data: URLs are accepted", field)
    media = _URL.match(url)
    if media is None or media[1].lower() not in domains:
        allowed = ", ".join(sorted(domains)[:10])
        raise BadRequest(f"{field}: only data: URLs and URLs of {allowed} are accepted", field)


def _media_parts(messages: Any) -> Iterator[str]:
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield from (
                    medium for name, medium in _MEDIUM_OF_PART.items() if part.get(name) is not None
                )
