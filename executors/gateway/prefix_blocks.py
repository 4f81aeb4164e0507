"""Chained hashes of the beginning of a prompt, for routing by prefix.

A hash stands for all bytes of the prompt, as JSON text, up to the end of its block.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right

from executors.gateway.api_paths import CHAT, COMPLETIONS, MESSAGES
from executors.gateway.openai_format import ApiCall

BLOCK_BYTES = 1024
"""Bytes of a block at the beginning of a prompt, about 250 tokens."""
_LATER_BYTES = 4 * BLOCK_BYTES
"""Bytes of a block further on, where a part of a block is little of the prompt."""
_LATER, _END = 32 * BLOCK_BYTES, 512 * BLOCK_BYTES
_ENDS = (
    *range(BLOCK_BYTES, _LATER + 1, BLOCK_BYTES),
    *range(_LATER + _LATER_BYTES, _END + 1, _LATER_BYTES),
)
_KEYS = {CHAT: b'"messages":', MESSAGES: b'"messages":', COMPLETIONS: b'"prompt":'}
"""Keys of prompts by path. JSON escapes quotes inside texts, so no text contains them."""


def prefix_blocks(call: ApiCall) -> tuple[int, ...]:
    """Hashes of the full blocks of the prompt of `call`, of at most 512 KiB. Adapters share no
    block with their model. Fields before the prompt have no effect."""
    core = call.body_core
    text = core[0] if len(core) == 1 else b"".join(core)
    start = text.find(_KEYS.get(call.path, b'"input":'))
    if start < 0:
        return ()
    view = memoryview(text)[start:]
    last = zlib.crc32(call.adapter.encode())
    found, begin = [], 0
    for end in _ENDS[: bisect_right(_ENDS, len(view))]:
        last = zlib.crc32(view[begin:end], last)
        found.append(last)
        begin = end
    return tuple(found)
