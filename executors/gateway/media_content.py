"""Find the media in a request, and check the URLs that engines would fetch.

For a model of components, the media are part of a request's kind, which routing uses
(`topics.routing.RequestKind`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from executors.gateway.allowed_fields import BadRequest
from executors.gateway.pooling_fields import SCORE_TEXTS

_MEDIUM_OF_PART = {
    "image_url": "image",
    "video_url": "video",
    "audio_url": "audio",
    "input_audio": "audio",
    "source": "image",
}
_PROMPT_FIELDS = ("messages", "system", "input", "query", *SCORE_TEXTS)
_URL_PARTS = ("image_url", "video_url", "audio_url")
# Stricter than any URL parser, so that engine and gateway cannot read different hosts from a URL.
_URL = re.compile(r"https?://([A-Za-z0-9.-]{1,253})(?::[0-9]{1,5})?(?:[/?#][!-\[\]-~]*)?\Z")


def media_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The media of a checked request, sorted: image, video and audio in its prompt, and audio-out
    if `modalities` contains audio."""
    media = {
        medium
        for _, part in _parts(body)
        for name, medium in _MEDIUM_OF_PART.items()
        if part.get(name) is not None
    }
    if "audio" in (body.get("modalities") or ()):
        media.add("audio-out")
    return tuple(sorted(media))


def check_urls(body: Mapping[str, Any], domains: Collection[str]) -> None:
    """Raise BadRequest if an engine would fetch from a host outside `domains`, because engines may
    reach hosts that clients must not reach, such as a cloud's metadata service."""
    for where, part in _parts(body):
        for name in _URL_PARTS:
            url = part.get(name)
            if isinstance(url, dict):
                url = url.get("url")
            if url and not url.startswith("data:"):
                _check_url(f"{where}.{name}", url, domains)


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The parts of all contents in a checked body, with the path of each."""
    for field in _PROMPT_FIELDS:
        given = body.get(field)
        items = given if isinstance(given, list) else [given]
        for number, item in enumerate(items):
            if not isinstance(item, dict):
                continue
            owner = f"{field}[{number}]" if isinstance(given, list) else field
            for name in ("content", "output"):
                content = item.get(name)
                for place, part in enumerate(content if isinstance(content, list) else ()):
                    if isinstance(part, dict):
                        yield f"{owner}.{name}[{place}]", part


def _check_url(field: str, url: str, domains: Collection[str]) -> None:
    if not domains:
        raise BadRequest(f"{field}: only data: URLs are accepted", field)
    media = _URL.match(url)
    if media is None or media[1].lower() not in domains:
        allowed = ", ".join(sorted(domains)[:10])
        raise BadRequest(f"{field}: only data: URLs and URLs of {allowed} are accepted", field)
