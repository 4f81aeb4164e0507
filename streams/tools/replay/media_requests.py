"""Chat requests with media for the replayer. The media are tiny, because their content does not
matter."""

from __future__ import annotations

from functools import cache

_PARTS = {
    "image": b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}',
    "video": b'{"type":"video_url","video_url":{"url":"data:video/mp4;base64,AAAA"}}',
    "audio": b'{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}',
}


@cache
def around(media: tuple[str, ...]) -> tuple[bytes, bytes]:
    """(JSON before the text, JSON after the text) of a chat request with `media`, a value of
    `topics.routing.MEDIA`.
    """
    parts = b"".join(_PARTS[medium] + b"," for medium in media if medium in _PARTS)
    asked = b'"modalities":["text","audio"],' if "audio-out" in media else b""
    start = b'"messages":[{"role":"user","content":[%s{"type":"text","text":"' % parts
    return asked + start, b'"}]}]}'
