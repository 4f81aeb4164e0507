"""Chained hashes of the beginning of a prompt, for routing by prefix.

A hash stands for all bytes of the prompt, as JSON text, up to the end of its block.
"""

from __future__ import annotations

import zlib

from executors.gateway.openai_format import ApiCall

BLOCK_BYTES = 1024
"""Bytes of a block, about 250 tokens."""
_MOST_BLOCKS = 512
_KEYS = (b'"messages":', b'"prompt":', b'"input":')
"""Keys of prompts. JSON escapes quotes inside texts, so no text contains them."""


def prefix_blocks(call: ApiCall) -> tuple[int, ...]:
    """Hashes of the full blocks of the prompt of `call`, of at most 512 KiB. Adapters share no
    block with their model. Fields before the prompt have no effect."""
    core = call.body_core
    text = core[0] if len(core) == 1 else b"".join(core)
    start = next((at for key in _KEYS if (at := text.find(key)) >= 0), -1)
    if start < 0:
        return ()
    view = memoryview(text)
    last = zlib.crc32(call.adapter.encode())
    found = []
    ends = range(start + BLOCK_BYTES, len(text) + 1, BLOCK_BYTES)[:_MOST_BLOCKS]
    for end in ends:
        last = zlib.crc32(view[end - BLOCK_BYTES : end], last)
        found.append(last)
    return tuple(found)
